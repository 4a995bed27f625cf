"""The vocabulary of descriptions: how a family of models writes tool calls and reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Space:
    """White space. Parsed: any, also none. `written`: by a grammar."""

    written: str = ""


@dataclass(frozen=True, slots=True)
class Maybe:
    """Text that some models leave out. A grammar writes it."""

    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """The name of the function. `ends`: texts that may follow it, the first of which a grammar writes."""

    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NumberedName:
    """The call's id, which contains the name of the function and the number of the call: `functions.NAME:0`."""

    end: str
    prefix: str = "functions."


@dataclass(frozen=True, slots=True)
class Json:
    """The arguments as a JSON object."""


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A JSON object with the name and the arguments of a call. `arguments`: keys, the first of which a grammar
    writes."""

    arguments: tuple[str, ...]
    name: str = "name"


@dataclass(frozen=True, slots=True)
class Tagged:
    """Arguments between tags, one after the other; a value is text, or JSON if the schema of its parameter is not of
    strings.

    Attributes:
        value_open: before a value; it may contain `{string}`, true or false, where tags say which values are strings.
        before_value, after_value: white space that a grammar writes around values, one newline of which is not part of
            them.
        after: white space after each argument.
    """

    key_open: str
    key_close: str
    value_open: str
    value_close: str
    before_value: str = ""
    after_value: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class GemmaArguments:
    """Gemma's notation, after its opening brace: bare keys, and strings between `<|"|>`."""


@dataclass(frozen=True, slots=True)
class PythonCall:
    """A call in Python's syntax with keyword arguments that are literals."""


Part: TypeAlias = str | Space | Maybe | Name | NumberedName | Json | JsonCall | Tagged | GemmaArguments | PythonCall


@dataclass(frozen=True, slots=True)
class Section:
    """Text around all calls of an answer. `separator`: between two calls; empty: white space."""

    open: tuple[Part, ...]
    close: tuple[Part, ...]
    separator: str = ""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Thinking before the answer.

    Attributes:
        names: of `--reasoning-parser`.
        markers: texts of chat templates whose models think so; any of them.
        model_types: `model_type` of which all models think so, where no marker tells.
        header: text after `open` that is no part of the thinking.
        then: text after `close` that is no part of the answer.
        implied: an answer begins inside, whether or not the prompt ends with `open`.
        channels: answers are messages as in harmony, and `open` begins one of thinking.
    """

    names: tuple[str, ...]
    open: str
    close: str
    markers: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    header: str = ""
    then: str = ""
    implied: bool = False
    channels: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """The tool calls of a family of models.

    Attributes:
        names: of `--tool-call-parser`.
        markers: texts of chat templates whose models call tools so; all of them.
        model_types: `model_type` of such models, where no marker tells.
        call: a call.
        between: white space between calls, which a grammar writes.
        section: around all calls; None: nothing is.
        channels: answers are messages as in harmony, and `call` is one of them.
        short_ids: ids of calls have nine letters and digits, as Mistral's templates demand.
    """

    names: tuple[str, ...]
    call: tuple[Part, ...]
    markers: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    between: str = "\n"
    section: Section | None = None
    channels: bool = False
    short_ids: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that an answer with one call has, in its order."""
        if self.section is None:
            return self.call
        return (*self.section.open, *self.call, *self.section.close)

    @property
    def openers(self) -> tuple[str, ...]:
        """Texts with which calls begin. Those of one character count only at the beginning of an answer."""
        found: list[str] = []
        for part in self.parts:
            match part:
                case str():
                    return (*found, part)
                case Maybe():
                    found.append(part.text)
                case JsonCall():
                    return (*found, "{")
                case _:
                    pass
        raise AssertionError(f"{self.names}: a call begins with nothing")

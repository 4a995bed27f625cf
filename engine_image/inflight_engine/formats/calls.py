"""Tool calls in the text of an answer, read part by part as their format describes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from inflight_engine.formats import values
from inflight_engine.formats.events import Events
from inflight_engine.formats.format import (
    Format,
    GemmaArguments,
    Json,
    JsonCall,
    Maybe,
    Name,
    NumberedName,
    Part,
    PythonCall,
    Section,
    Space,
    Tagged,
)
from inflight_engine.formats.source import Mismatch, Reading, Source

_NAME = re.compile(r"[\w.\-/]*")
_DIGITS = re.compile(r"[0-9]*")

MAX_NAME = 256
"""Length of a function's name, in characters."""

Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""JSON schemas of parameters, by function and parameter."""


def is_name(text: str) -> bool:
    """Calls of a function with this name can be read."""
    return 0 < len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


class CallReader:
    """Reader of the calls at one place of an answer. A call begins with its first argument.

    Args:
        known: only calls of functions with schemas are calls.

    Attributes:
        read_to: where the text ends of which all was passed on.
    """

    def __init__(self, source: Source, form: Format, schemas: Schemas, events: Events, *, known: bool = False) -> None:
        self.read_to = 0
        self._source = source
        self._form = form
        self._schemas = schemas
        self._events = events
        self._known = known
        self._name = ""
        self._id: str | None = None
        self._begun = False

    def read(self) -> Reading[None]:
        """Read all calls that follow each other.

        Raises:
            Mismatch: the text is of another form, from `read_to` on.
        """
        form = self._form
        if form.section is None:
            yield from self._call(form)
            return
        yield from self._parts(form.section.open)
        yield from self._call(form)
        while (yield from self._another(form, form.section)):
            yield from self._source.space()
            yield from self._call(form)
        yield from self._parts(form.section.close)
        self.read_to = self._source.at

    def read_json(self, name: str) -> Reading[None]:
        """Read the arguments of a call of this function.

        Raises:
            Mismatch: the text is of another form, from `read_to` on.
        """
        self._name = name
        yield from self._part(Json())
        self._end()

    def _call(self, form: Format) -> Reading[None]:
        yield from self._parts(form.call)
        self._end()

    def _another(self, form: Format, section: Section) -> Reading[bool]:
        yield from self._source.space()
        if section.separator:
            return (yield from self._source.accept(section.separator.strip()))
        first = form.call[0]
        assert isinstance(first, str)
        return (yield from self._source.next_is(first))

    def _begin(self) -> None:
        if self._known and self._name not in self._schemas:
            raise Mismatch
        self._begun = True
        self._events.begin_call(self._name, self._id)

    def _add(self, arguments: str) -> None:
        if not self._begun:
            self._begin()
        self._events.arguments(arguments)
        self.read_to = self._source.at

    def _end(self) -> None:
        if not self._begun:
            self._add("{}")
        self._begun, self._id, self.read_to = False, None, self._source.at

    def _parts(self, parts: tuple[Part, ...]) -> Reading[None]:
        for part in parts:
            yield from self._part(part)

    def _part(self, part: Part) -> Reading[None]:
        source = self._source
        match part:
            case str():
                yield from source.expect(part)
            case Space():
                yield from source.space()
            case Maybe():
                yield from source.accept(part.text)
            case Name():
                self._name = yield from self._read_name()
                yield from self._end_of_name(part)
            case NumberedName():
                yield from self._numbered_name(part)
            case Json():
                yield from source.space()
                if not (yield from source.next_is("{")):
                    raise Mismatch
                yield from values.json_value(source, self._add)
            case JsonCall():
                yield from self._json_call(part)
            case Tagged():
                yield from self._tagged(part)
            case GemmaArguments():
                yield from values.gemma_arguments(source, self._add)
            case PythonCall():
                self._name = yield from self._read_name()
                yield from source.expect("(")
                yield from values.python_arguments(source, self._add)

    def _read_name(self) -> Reading[str]:
        name = yield from self._source.matching(_NAME, MAX_NAME)
        if not name:
            raise Mismatch
        return name

    def _end_of_name(self, part: Name) -> Reading[None]:
        for end in part.ends:
            if (yield from self._source.accept(end)):
                return
        raise Mismatch

    def _numbered_name(self, part: NumberedName) -> Reading[None]:
        source = self._source
        yield from source.space()
        yield from source.accept(part.prefix)
        self._name = yield from self._read_name()
        yield from source.expect(":")
        number = yield from source.matching(_DIGITS, MAX_NAME)
        self._id = f"{part.prefix}{self._name}:{number}"
        yield from source.space()
        yield from source.expect(part.end)

    def _json_call(self, part: JsonCall) -> Reading[None]:
        """Arguments are passed on as they arrive, if the name came before them."""
        source = self._source
        self._name, seen = "", False
        early: list[str] = []
        yield from source.expect("{")
        while True:
            yield from source.space()
            key = yield from values.json_text(source)
            yield from source.space()
            yield from source.expect(":")
            yield from source.space()
            if key == part.name and not self._name:
                self._name = yield from values.json_text(source)
                if not is_name(self._name):
                    raise Mismatch
                if early:
                    self._add("".join(early))
            elif key in part.arguments and not seen:
                seen = True
                yield from self._json_arguments(self._add if self._name else early.append)
            else:
                yield from values.json_value(source, _drop)
            yield from source.space()
            if not (yield from source.accept(",")):
                break
        yield from source.expect("}")
        if not self._name:
            raise Mismatch

    def _json_arguments(self, out: Callable[[str], None]) -> Reading[None]:
        """Read an object, or a string that has one; null is none."""
        source = self._source
        char = yield from source.peek()
        if char == '"':
            out((yield from values.json_text(source)) or "{}")
        elif char == "{":
            yield from values.json_value(source, out)
        else:
            yield from source.expect("null")

    def _tagged(self, part: Tagged) -> Reading[None]:
        source = self._source
        schemas = self._schemas.get(self._name, {})
        count = 0
        while (yield from source.accept(part.key_open)):
            written: list[str] = []
            if not (yield from values.text_until(source, (part.key_close,), written.append)):
                raise Mismatch
            source.at += len(part.key_close)
            key = "".join(written).strip()
            types = values.json_types(schemas.get(key)) or {"string"}
            if part.value_open:
                yield from source.space()
                types = yield from self._value_open(part.value_open, types)
            self._add(("{" if count == 0 else ", ") + f'"{values.quoted(key)}": ')
            yield from self._value(part, types)
            count += 1
            yield from source.space()
        if count:
            self._add("}")

    def _value_open(self, value_open: str, types: set[str]) -> Reading[set[str]]:
        """Types of the value that follows; empty: any."""
        if "{string}" not in value_open:
            yield from self._source.expect(value_open)
            return types
        for written, kinds in (("true", {"string"}), ("false", set[str]())):
            if (yield from self._source.accept(value_open.strip().replace("{string}", written))):
                return kinds
        yield from self._source.expect(">")
        return set()

    def _value(self, part: Tagged, types: set[str]) -> Reading[None]:
        source = self._source
        trimmed = bool(part.before_value)
        if trimmed:
            yield from source.accept("\n")
        if types == {"string"}:
            self._add('"')
            inside = _Inside(self._add, trimmed=trimmed)
            if not (yield from values.text_until(source, (part.value_close,), inside.add)):
                raise Mismatch
            self._add('"')
        else:
            written: list[str] = []
            if not (yield from values.text_until(source, (part.value_close,), written.append)):
                raise Mismatch
            text = "".join(written)
            self._add(values.value_of(text.removesuffix("\n") if trimmed else text, types))
        source.at += len(part.value_close)


class _Inside:
    """The inside of a JSON string. `trimmed`: without a newline at its end."""

    def __init__(self, out: Callable[[str], None], *, trimmed: bool) -> None:
        self._out = out
        self._trimmed = trimmed
        self._held = ""

    def add(self, text: str) -> None:
        whole = self._held + text
        self._held = "\n" if self._trimmed and whole.endswith("\n") else ""
        self._out(values.quoted(whole[: len(whole) - len(self._held)]))


def _drop(_text: str) -> None:
    pass

"""Parts of an answer, in the order in which they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from inflight_engine.formats.source import Source


@dataclass(slots=True)
class TextEvent:
    """Text of the answer, or of the thinking before it, as the model wrote it.

    Attributes:
        at: characters that the model wrote before it.
    """

    kind: Literal["content", "reasoning"]
    text: str
    at: int = 0


@dataclass(slots=True)
class CallEvent:
    """A part of a tool call.

    Attributes:
        index: of the call among those of the answer.
        name: of the function, in the first part.
        id: in the first part, where the model wrote one.
        arguments: JSON, continuing that of earlier parts.
    """

    index: int
    name: str | None = None
    id: str | None = None
    arguments: str = ""


Event: TypeAlias = TextEvent | CallEvent


class Events:
    """Events that were not taken yet. Attributes: `calls`: how many calls began.

    Args:
        parallel: further calls than the first are kept.
    """

    def __init__(self, *, parallel: bool = True) -> None:
        self.calls = 0
        self._untaken: list[Event] = []
        self._parallel = parallel

    def take(self) -> list[Event]:
        """The events since the last call."""
        taken, self._untaken = self._untaken, []
        return taken

    def text(self, kind: Literal["content", "reasoning"], text: str, at: int) -> None:
        """Add text, of which `at` is the place."""
        last = self._untaken[-1] if self._untaken else None
        if isinstance(last, TextEvent) and last.kind == kind and last.at + len(last.text) == at:
            last.text += text
        else:
            self._untaken.append(TextEvent(kind, text, at))

    def begin_call(self, name: str, id: str | None) -> None:
        """Begin a call, whose arguments follow."""
        self.calls += 1
        if self.calls == 1 or self._parallel:
            self._untaken.append(CallEvent(self.calls - 1, name, id))

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that began last."""
        if not text or (self.calls > 1 and not self._parallel):
            return
        last = self._untaken[-1] if self._untaken else None
        if isinstance(last, CallEvent):
            last.arguments += text
        else:
            self._untaken.append(CallEvent(self.calls - 1, arguments=text))


class Trimmed:
    """Text of a source without the white space at its end.

    Attributes:
        begun: there was visible text.

    Args:
        leading: white space before the first visible text is kept.
    """

    def __init__(self, source: Source, events: Events, kind: Literal["content", "reasoning"], *, leading: bool) -> None:
        self.begun = False
        self._source = source
        self._events = events
        self._kind = kind
        self._space = ""
        self._leading = leading

    def add(self, text: str) -> None:
        """Add the text that was read last."""
        visible = text.rstrip()
        if not visible:
            self._space += text
            return
        lead, end = self._space + visible, self._source.num_read - len(text) + len(visible)
        kept = lead if self._leading else lead.lstrip()
        self._events.text(self._kind, kept, end - len(kept))
        self.begun, self._leading, self._space = True, True, text[len(visible) :]

    def cut(self) -> None:
        """Something else follows: white space before it is not part of the text, nor is any before the first text."""
        self._leading, self._space = self.begun, ""

    def end(self) -> None:
        """No more text arrives: the white space at its end is part of it."""
        if self._space and self._leading:
            self._events.text(self._kind, self._space, self._source.num_read - len(self._space))
        self._space = ""

"""Reasoning, content and tool calls of an answer, out of its text as it arrives.

The events of a text do not depend on how it was cut into pieces, so an answer that another replica continues is parsed
by feeding its text again. Text that is not of the format is content: a call is held back until its first argument, and
becomes content if it turns out to be none before that. Where the answer ends inside a call, its arguments end there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from inflight_engine.formats import values
from inflight_engine.formats.calls import CallReader, Schemas
from inflight_engine.formats.events import Event, Events, Trimmed
from inflight_engine.formats.format import Format, Reasoning
from inflight_engine.formats.source import Mismatch, Reading, Source


@dataclass(frozen=True, slots=True)
class Parsing:
    """How to parse an answer.

    Attributes:
        format: of tool calls; None: there are none.
        reasoning: None: there is none.
        opened: the prompt ends inside of the reasoning.
        schemas: of the functions that may be called.
        parallel: further calls than the first are kept.
        named: the request names the function that is called.
    """

    format: Format | None = None
    reasoning: Reasoning | None = None
    opened: bool = False
    schemas: Schemas = field(default_factory=dict)
    parallel: bool = True
    named: bool = False

    @property
    def thinks(self) -> bool:
        """The answer begins inside of the reasoning."""
        return self.reasoning is not None and (self.opened or self.reasoning.implied)

    @property
    def channels(self) -> bool:
        return (self.format is not None and self.format.channels) or (
            self.reasoning is not None and self.reasoning.channels
        )

    @property
    def openers(self) -> tuple[str, ...]:
        return () if self.format is None else self.format.openers


class AnswerParser:
    """Parser of one answer."""

    def __init__(self, how: Parsing) -> None:
        self._how = how
        self._source = Source()
        self._events = Events(parallel=how.parallel)
        self._content = Trimmed(self._source, self._events, "content", leading=True)
        self._reasoning = Trimmed(self._source, self._events, "reasoning", leading=False)
        self._long = tuple(each for each in how.openers if len(each) > 1)
        self._short = tuple(each for each in how.openers if len(each) == 1)
        self._reader = self._messages() if how.channels else self._answer()

    @property
    def calls(self) -> int:
        """How many tool calls began."""
        return self._events.calls

    def feed(self, text: str) -> list[Event]:
        """Events that this text completes."""
        self._source.push(text)
        next(self._reader, None)
        return self._events.take()

    def finish(self) -> list[Event]:
        """Events of the text that was held back: the answer is complete."""
        self._source.ended = True
        next(self._reader, None)
        return self._events.take()

    def _answer(self) -> Reading[None]:
        source, content, reasoning = self._source, self._content, self._how.reasoning
        thinks = self._how.thinks
        while True:
            if thinks and reasoning is not None:
                yield from self._think(reasoning)
            at_start = not content.begun and not self.calls
            if at_start:
                yield from self._start()
            may_think = (reasoning.open,) if reasoning is not None and at_start else ()
            found = yield from values.text_until(source, (*self._long, *may_think), content.add, forget=True)
            if not found:
                break
            thinks = found in may_think and not content.begun and not self.calls
            if thinks:
                source.at += len(found)
            elif found in self._long:
                yield from self._try_calls(found, content)
            else:
                source.at += len(found)
                content.add(found)
        if not self.calls:
            content.end()

    def _start(self) -> Reading[None]:
        """White space before the answer, and calls that a single character begins there."""
        source = self._source
        begin = source.at
        yield from source.space()
        self._content.add(source.text[begin : source.at])
        char = yield from source.peek()
        if char and char in self._short:
            yield from self._try_calls(char, self._content, known=True)

    def _think(self, reasoning: Reasoning) -> Reading[None]:
        """Reasoning up to its end, or to a call."""
        source = self._source
        yield from source.accept(reasoning.open)
        yield from source.accept(reasoning.header)
        found, called = "x", False
        while found not in ("", reasoning.close) and not called:
            found = yield from values.text_until(
                source, (reasoning.close, *self._long), self._reasoning.add, forget=True
            )
            if found in self._long:
                called = yield from self._try_calls(found, self._reasoning)
            else:
                source.at += len(found)
        self._reasoning.cut()
        self._content.cut()

    def _try_calls(self, opener: str, text: Trimmed, *, known: bool = False) -> Reading[bool]:
        """Read calls. If there are none, the opener is `text`. Returns whether there were any.

        Args:
            known: calls of unknown functions are none.
        """
        source, how = self._source, self._how
        assert how.format is not None
        begin = source.at
        calls = CallReader(source, how.format, how.schemas, self._events, known=known)
        if (yield from self._tried(calls.read(), calls)):
            return True
        source.at = begin + len(opener)
        text.add(opener)
        return False

    def _tried(self, reading: Reading[None], calls: CallReader) -> Reading[bool]:
        """Read calls. Returns whether one began; then the text that followed and is of no call is unread."""
        source, before = self._source, self.calls
        try:
            yield from reading
        except Mismatch:
            if self.calls > before:
                source.at = len(source.text) if source.short else calls.read_to
        if self.calls == before:
            return False
        self._content.cut()
        return True

    def _messages(self) -> Reading[None]:
        """Harmony's messages: a header with the channel and perhaps a recipient, then the text. Text that no header
        precedes is content."""
        source = self._source
        while True:
            source.forget()
            header = yield from self._header()
            recipient = _RECIPIENT.search(header)
            called = False
            if recipient is not None and self._how.format is not None:
                begin = source.at
                calls = CallReader(source, self._how.format, self._how.schemas, self._events)
                called = yield from self._tried(calls.read_json(recipient[1]), calls)
                if not called:
                    source.at = begin
            if called:
                end = yield from values.text_until(source, _MESSAGE_ENDS, _drop, forget=True)
            else:
                thinks = self._how.reasoning is not None and "<|channel|>analysis" in header
                text = self._reasoning if thinks else self._content
                end = yield from values.text_until(source, _MESSAGE_ENDS, text.add, forget=True)
                text.cut()
            if not end:
                return
            if end not in _HEADERS:
                source.at += len(end)

    def _header(self) -> Reading[str]:
        """Read a header; empty: there is none."""
        source = self._source
        written: list[str] = []
        for begin in _HEADERS:
            if (yield from source.next_is(begin)):
                break
        else:
            return ""
        if (yield from values.text_until(source, (_MESSAGE,), written.append)):
            source.at += len(_MESSAGE)
            return "".join(written)
        self._content.add("".join(written))  # the answer ends in its header
        return ""


_MESSAGE = "<|message|>"
_HEADERS = ("<|start|>", "<|channel|>", " to=")
_MESSAGE_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"to=functions\.([\w.\-/]+)")


def _drop(_text: str) -> None:
    pass

"""Answers as a list of blocks, which begin and end one after the other: thinking, text, and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from inflight_engine.formats.events import CallEvent, Event, TextEvent
from inflight_engine.request import FinishReason
from inflight_engine.server.answers.events import CallIds
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.choice_text import Piece


@dataclass(slots=True)
class Block:
    """A part of an answer.

    Attributes:
        index: of the block in the answer.
        name, call_id: of a call.
        cut: the answer reached its greatest length in it.
        parts: its text so far.
    """

    index: int
    kind: Literal["reasoning", "content", "call"]
    name: str = ""
    call_id: str = ""
    cut: bool = False
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text so far; of a call its arguments."""
        return "".join(self.parts)


Change: TypeAlias = tuple[Literal["begin", "add", "end"], Block, str]
"""A block begins, has more text, or ends. The text: what is added."""


class Blocks:
    """The blocks so far, as events of an answer arrive. At most the last one has not ended.

    Attributes:
        all: the blocks.
    """

    def __init__(self, ids: CallIds) -> None:
        self.all: list[Block] = []
        self._ids = ids
        self._open = False

    def take(self, events: Iterable[Event]) -> Iterator[Change]:
        """Changes that these events make."""
        for event in events:
            new: Block | None = None
            match event:
                case TextEvent(kind, text):
                    if not (self._open and self.all[-1].kind == kind):
                        new = Block(len(self.all), kind)
                case CallEvent(name=name, arguments=text):
                    if name is not None:
                        new = Block(len(self.all), "call", name=name, call_id=self._ids.of(event))
            if new is not None:
                yield from self._end()
                self.all.append(new)
                self._open = True
                yield "begin", new, ""
            if text:
                block = self.all[-1]
                block.parts.append(text)
                yield "add", block, text

    def finish(self, *, cut: bool) -> Iterator[Change]:
        """The end of the answer, which has at least one block, of empty text if need be. `cut`: by its length."""
        if not self.all:
            yield from self.take([TextEvent("content", "")])
        self.all[-1].cut = cut
        yield from self._end()

    def _end(self) -> Iterator[Change]:
        if self._open:
            self._open = False
            yield "end", self.all[-1], ""


class AnswerBlocks(Blocks):
    """Blocks of a call with one choice. What another replica wrote of it is there from the start."""

    def __init__(self, call: Call, ids: CallIds) -> None:
        super().__init__(ids)
        (self._choice,) = call.choices
        if call.streaming:
            self.changes(self._choice.replayed, ended=self._choice.written)

    def changes(self, piece: Piece, *, ended: bool = False) -> list[Change]:
        """Changes that a piece makes. `ended`: it is the last."""
        choice, events = self._choice, piece.events
        if choice.request.parsing is None:
            events = [TextEvent("content", piece.text)] if piece.text else ()
        changes = [*self.take(events)]
        if ended:
            changes += self.finish(cut=choice.finish_reason is FinishReason.LENGTH)
        return changes

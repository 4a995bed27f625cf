"""The events of a response's stream: each is made of the change of a block, and the numbers have no gap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from inflight_engine.server.answers.blocks import Block, Change
from inflight_engine.server.responses.scores import Scores

_BEGIN = ("response.created", "response.in_progress")

_PREFIXES = {"reasoning": "rs", "content": "msg", "call": "fc"}


class ResponseEvents:
    """Makes events.

    Args:
        response_id: of the response; the ids of its items follow from it.

    Attributes:
        sequence_number: of the next event after the first ones.
    """

    def __init__(self, response_id: str) -> None:
        self.sequence_number = len(_BEGIN)
        self._id = response_id
        self._scores: dict[int, Scores] = {}
        """Log-probabilities of the text of blocks."""

    def begin(self, response: dict[str, Any]) -> list[dict[str, Any]]:
        """The first events. They may be made after others."""
        return [{"type": name, "sequence_number": i, "response": response} for i, name in enumerate(_BEGIN)]

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next event."""
        number = self.sequence_number
        self.sequence_number += 1
        return {"type": kind, "sequence_number": number, **fields}

    def of(self, changes: Iterable[Change], scores: Iterator[Scores]) -> Iterator[dict[str, Any]]:
        """Events of some changes. `scores`: log-probabilities of each text that is added, where they were asked for;
        later events do not repeat them."""
        for kind, block, text in changes:
            match kind:
                case "begin":
                    yield from self._begin(block)
                case "add":
                    yield self._delta(block, text, next(scores, []) if block.kind == "content" else [])
                case "end":
                    yield from self._end(block)

    def keep_scores(self, changes: Iterable[Change], scores: Iterator[Scores]) -> None:
        """Take log-probabilities into the items of an answer that is not streamed; arguments as in `of`."""
        for kind, block, _ in changes:
            if kind == "add" and block.kind == "content":
                self._scores.setdefault(block.index, []).extend(next(scores, []))

    def item(self, block: Block) -> dict[str, Any]:
        """The item of a block that has ended."""
        return self._item(block, "incomplete" if block.cut else "completed", [self._part(block, block.text)])

    def _begin(self, block: Block) -> Iterator[dict[str, Any]]:
        item = self._item(Block(block.index, block.kind, block.name, block.call_id), "in_progress", [])
        yield self.event("response.output_item.added", output_index=block.index, item=item)
        if block.kind != "call":
            part = self._part(block, "")
            yield self.event("response.content_part.added", **self._place(block), content_index=0, part=part)

    def _delta(self, block: Block, text: str, scores: Scores) -> dict[str, Any]:
        place = self._place(block)
        match block.kind:
            case "content":
                return self.event("response.output_text.delta", **place, content_index=0, delta=text, logprobs=scores)
            case "reasoning":
                return self.event("response.reasoning_text.delta", **place, content_index=0, delta=text)
            case "call":
                return self.event("response.function_call_arguments.delta", **place, delta=text)

    def _end(self, block: Block) -> Iterator[dict[str, Any]]:
        place, text = self._place(block), block.text
        match block.kind:
            case "content":
                yield self.event("response.output_text.done", **place, content_index=0, text=text, logprobs=[])
            case "reasoning":
                yield self.event("response.reasoning_text.done", **place, content_index=0, text=text)
            case "call":
                kind = "response.function_call_arguments.done"
                yield self.event(kind, **place, name=block.name, arguments=text)
        if block.kind != "call":
            part = self._part(block, text)
            yield self.event("response.content_part.done", **place, content_index=0, part=part)
        yield self.event("response.output_item.done", output_index=block.index, item=self.item(block))

    def _place(self, block: Block) -> dict[str, Any]:
        return {"item_id": self._item_id(block), "output_index": block.index}

    def _item_id(self, block: Block) -> str:
        digest = blake2b(f"{self._id} {block.index}".encode(), digest_size=12).hexdigest()
        return f"{_PREFIXES[block.kind]}_{digest}"

    def _item(self, block: Block, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        item_id = self._item_id(block)
        match block.kind:
            case "content":
                kept = {"type": "message", "id": item_id, "status": status, "role": "assistant"}
                return {**kept, "content": parts}
            case "reasoning":
                return {"type": "reasoning", "id": item_id, "status": status, "summary": [], "content": parts}
            case "call":
                named = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
                return {"type": "function_call", "id": item_id, "status": status, **named}

    def _part(self, block: Block, text: str) -> dict[str, Any]:
        if block.kind == "content":
            scores = self._scores.get(block.index, [])
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}
        return {"type": "reasoning_text", "text": text}

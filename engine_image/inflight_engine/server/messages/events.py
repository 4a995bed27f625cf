"""The events of a message's stream, each made of the change of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from inflight_engine.server.answers.blocks import Block, Change


class MessageEvents:
    """Makes events.

    Args:
        message_id: of the message; the signatures of its thinking follow from it.
        shows_thinking: blocks of thinking have their text.
    """

    def __init__(self, message_id: str, *, shows_thinking: bool = True) -> None:
        self._id = message_id
        self._shows_thinking = shows_thinking

    def of(self, changes: Iterable[Change]) -> Iterator[dict[str, Any]]:
        """Events of some changes."""
        for kind, block, text in changes:
            match kind:
                case "begin":
                    empty = self.block(Block(block.index, block.kind, block.name, block.call_id))
                    if block.kind == "reasoning":
                        empty["signature"] = ""
                    yield {"type": "content_block_start", "index": block.index, "content_block": empty}
                case "add":
                    if block.kind != "reasoning" or self._shows_thinking:
                        yield _delta(block, _KINDS[block.kind][0], text)
                case "end":
                    if block.kind == "reasoning":
                        yield _delta(block, "signature", self._signature(block))
                    yield {"type": "content_block_stop", "index": block.index}

    def block(self, block: Block) -> dict[str, Any]:
        """A block of the message. A call that is cut off has no input."""
        match block.kind:
            case "content":
                return {"type": "text", "text": block.text, "citations": None}
            case "reasoning":
                text = block.text if self._shows_thinking else ""
                return {"type": "thinking", "thinking": text, "signature": self._signature(block)}
            case "call":
                called = {"type": "tool_use", "id": block.call_id, "name": block.name, "input": _object(block.text)}
                return {**called, "caller": {"type": "direct"}}

    def _signature(self, block: Block) -> str:
        """A word that says where the thinking is from: clients send it back, and some drop thinking without one."""
        return blake2b(f"{self._id} {block.index}".encode(), digest_size=12).hexdigest()


_KINDS = {"content": ("text", "text"), "reasoning": ("thinking", "thinking"), "call": ("input_json", "partial_json")}
"""Name of the deltas of a block's text, and of their field."""


def _delta(block: Block, kind: str, text: str) -> dict[str, Any]:
    field = kind if kind == "signature" else _KINDS[block.kind][1]
    return {"type": "content_block_delta", "index": block.index, "delta": {"type": f"{kind}_delta", field: text}}


def _object(arguments: str) -> Any:
    """The arguments as the model wrote them: their numbers may be larger than msgspec encodes."""
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return msgspec.Raw(arguments.encode())

"""Responses of /v1/messages, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from inflight_contract.errors import ApiError, anthropic_body
from inflight_engine.request import FinishReason
from inflight_engine.server.answers.blocks import AnswerBlocks
from inflight_engine.server.answers.events import call_ids
from inflight_engine.server.answers.writer import AnswerFormat
from inflight_engine.server.messages.events import MessageEvents
from inflight_engine.server.messages.requests import MessagesRequest
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.choice_text import Piece
from inflight_engine.server.requests.generation import Generation


class MessagesAnswer(AnswerFormat):
    """A message; the call has one choice.

    Args:
        model: the served name.
        request_id: what its ids are made of.
    """

    done = b""

    def __init__(self, call: Call, body: MessagesRequest, model: str, request_id: str) -> None:
        self._call = call
        self._body = body
        self._model = model
        self._id = f"msg_{request_id}"
        (self._choice,) = call.choices
        hidden = body.thinking is not None and body.thinking.display == "omitted"
        self._events = MessageEvents(self._id, shows_thinking=not hidden)
        self._blocks = AnswerBlocks(call, call_ids(self._choice, self._id))

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        self._blocks.changes(pieces[0], ended=True)
        content = [self._events.block(block) for block in self._blocks.all]
        return msgspec.json.encode(self._message() | {"content": content, **self._stop()})

    def first(self) -> bytes:
        return _written([{"type": "message_start", "message": self._message()}])

    def piece(self, choice: Generation, piece: Piece) -> bytes:
        return _written(self._events.of(self._blocks.changes(piece)))

    def last(self, choice: Generation, piece: Piece) -> bytes:
        return _written(self._events.of(self._blocks.changes(piece, ended=True)))

    def end(self) -> bytes:
        delta = {"type": "message_delta", "delta": {**self._stop(), "container": None}, "usage": self._counts()}
        return _written([delta, {"type": "message_stop"}])

    def error_body(self, error: ApiError) -> bytes:
        return anthropic_body(error)

    def failure(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + anthropic_body(error) + b"\n\n"

    def _message(self) -> dict[str, Any]:
        """The message without content, as a stream begins."""
        none = {"cache_creation": None, "inference_geo": None, "service_tier": "standard"}
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": {**self._counts(), **none},
        }
        if self._body.context_management is not None:
            message["context_management"] = {"applied_edits": []}
        return message

    def _stop(self) -> dict[str, Any]:
        """Why the answer ended."""
        choice, sequence = self._choice, None
        if choice.finish_reason is FinishReason.LENGTH:
            asked = self._body.max_tokens
            reason = "max_tokens" if len(choice.token_ids) >= asked else "model_context_window_exceeded"
        elif isinstance(choice.stop_reason, str):
            reason, sequence = "stop_sequence", choice.stop_reason
        else:
            called = any(block.kind == "call" for block in self._blocks.all)
            reason = "tool_use" if called else "end_turn"
        return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}

    def _counts(self) -> dict[str, Any]:
        """Tokens so far. Anthropic's `input_tokens` are without those that the cache had."""
        call = self._call
        cached = call.num_cached_tokens
        return {
            "input_tokens": call.num_prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": call.num_output_tokens,
            "output_tokens_details": {"thinking_tokens": call.num_reasoning_tokens},
            "server_tool_use": None,
        }


def _written(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event)) for event in events
    )

"""Responses of /v1/responses, whole and streamed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from inflight_contract.errors import ApiError
from inflight_engine.request import FinishReason
from inflight_engine.server.answers.blocks import AnswerBlocks
from inflight_engine.server.answers.events import call_ids
from inflight_engine.server.answers.logprobs import TokenBytes
from inflight_engine.server.answers.writer import AnswerFormat
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.choice_text import Piece
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.responses.events import ResponseEvents
from inflight_engine.server.responses.requests import ResponsesRequest
from inflight_engine.server.responses.scores import Scores, TextScores


class ResponsesAnswer(AnswerFormat):
    """A response; the call has one choice.

    Args:
        model: the served name.
        request_id: what its ids are made of.
        token_bytes: the text of a token.
    """

    def __init__(
        self, call: Call, body: ResponsesRequest, model: str, request_id: str, token_bytes: TokenBytes
    ) -> None:
        continuation = body.inflight_continuation
        self._call = call
        self._body = body
        self._model = model
        self._id = f"resp_{request_id}"
        self._created = int(time.time()) if continuation is None else continuation.created
        self._tools = _written_once(
            [
                {"description": None, "parameters": None, "strict": None, **each.model_dump(exclude_none=True)}
                for each in body.tools or ()
            ]
        )
        self._text = _written_once({"format": _text_format(body)})
        (self._choice,) = call.choices
        self._blocks = AnswerBlocks(call, call_ids(self._choice, self._id))
        self._events = ResponseEvents(self._id)
        self._scores = TextScores(self._choice.request, token_bytes) if self._choice.scored else None
        if continuation is not None and continuation.sequence_number is not None:
            self._events.sequence_number = continuation.sequence_number

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        (piece,) = pieces
        self._events.keep_scores(self._blocks.changes(piece, ended=True), self._scores_of(piece))
        return msgspec.json.encode(self._response())

    def first(self) -> bytes:
        return _written(self._events.begin(self._response(status="in_progress")))

    def piece(self, choice: Generation, piece: Piece) -> bytes:
        return _written(self._events.of(self._blocks.changes(piece), self._scores_of(piece)))

    def last(self, choice: Generation, piece: Piece) -> bytes:
        return _written(self._events.of(self._blocks.changes(piece, ended=True), self._scores_of(piece)))

    def end(self) -> bytes:
        return _written([self._events.event(f"response.{self._status}", response=self._response())])

    def failure(self, error: ApiError) -> bytes:
        described = {"code": error.code, "message": error.message, "param": error.param}
        failed = self._response(status="failed") | {
            "error": {"code": error.code or "server_error", "message": error.message}
        }
        events = [self._events.event("error", **described)]
        return _written([*events, self._events.event("response.failed", response=failed)])

    def _scores_of(self, piece: Piece) -> Iterator[Scores]:
        return iter(() if self._scores is None else self._scores.of(piece))

    @property
    def _status(self) -> str:
        return "incomplete" if self._choice.finish_reason is FinishReason.LENGTH else "completed"

    def _response(self, status: str | None = None) -> dict[str, Any]:
        """The response. `status`: None: it is complete."""
        call, body, sampling, ended = self._call, self._body, self._choice.request.sampling, status is None
        status = status or self._status
        cut = status == "incomplete"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "model": self._model,
            "instructions": body.instructions,
            "output": [self._events.item(block) for block in self._blocks.all] if ended else [],
            "usage": _usage(call) if ended else None,
            "max_output_tokens": body.max_output_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "top_logprobs": body.top_logprobs or 0,
            "tools": self._tools,
            "tool_choice": _shown(body.tool_choice, "auto"),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "max_tool_calls": body.max_tool_calls,
            "text": self._text,
            "reasoning": {"effort": None, "summary": None, **_shown(body.reasoning, {})},
            "store": False,
            "background": False,
            "truncation": "disabled",
            "previous_response_id": None,
            "service_tier": "default" if body.service_tier is None else call.service_class,
            "metadata": body.metadata or {},
            "user": body.user,
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
        }


def _usage(call: Call) -> dict[str, Any]:
    prompt, output = call.num_prompt_tokens, call.num_output_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": call.num_cached_tokens},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": call.num_reasoning_tokens},
        "total_tokens": prompt + output,
    }


def _shown(value: Any, default: Any) -> Any:
    """A field of the request as the response repeats it."""
    if value is None:
        return default
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else value


def _text_format(body: ResponsesRequest) -> Any:
    form = None if body.text is None else body.text.format
    if form is None:
        return {"type": "text"}
    return form.model_dump(by_alias=True)


def _written_once(value: Any) -> msgspec.Raw:
    """JSON of the request, whose numbers may be larger than msgspec encodes."""
    return msgspec.Raw(json.dumps(value, ensure_ascii=False).encode())


def _written(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event)) for event in events
    )

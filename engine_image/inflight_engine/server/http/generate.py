"""POST /v1/generate: Inflight's native endpoint, with token ids and timings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from inflight_engine.output import TokenLogprobs
from inflight_engine.server.answers.logprobs import finite
from inflight_engine.server.answers.respond import GenerationResponse
from inflight_engine.server.answers.writer import AnswerFormat
from inflight_engine.server.bodies.schema import GenerateRequest
from inflight_engine.server.http.endpoint import begin
from inflight_engine.server.http.strict_json import StrictJsonRoute
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.choice_text import Piece
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.requests.phases import Timings
from inflight_engine.server.service import ServiceOf

router = APIRouter(route_class=StrictJsonRoute)


@router.post("/v1/generate")
async def generate(body: GenerateRequest, http: Request, service: ServiceOf) -> Response:
    """Text, tokens, finish reason and timings for one prompt; `max_tokens` defaults to what the context leaves."""
    call = await begin(service, http, body)
    return GenerationResponse(service.registry, service.heartbeats, service.channels, call, GenerateAnswer(call))


class GenerateAnswer(AnswerFormat):
    """`tokens` are all that were sampled, a stop token included, and `logprobs` goes with them. In a stream text may
    lag behind its tokens while it could become a stop string or a character is not complete.

    One answer is the object itself; of several there is a list, `choices`, and in a stream each event has its `index`.
    """

    names_tokens = True

    def __init__(self, call: Call) -> None:
        self._call = call
        self._sent = [len(choice.token_ids) if call.streaming else 0 for choice in call.choices]

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        answers = [
            {**self._news(choice, piece), **_end(choice)}
            for choice, piece in zip(self._call.choices, pieces, strict=True)
        ]
        return msgspec.json.encode(answers[0] if len(answers) == 1 else {"choices": answers})

    def first(self) -> bytes:
        return b""

    def piece(self, choice: Generation, piece: Piece) -> bytes:
        return _event(self._news(choice, piece))

    def last(self, choice: Generation, piece: Piece) -> bytes:
        return _event({**self._news(choice, piece), **_end(choice)})

    def end(self) -> bytes:
        return b""

    def _news(self, choice: Generation, piece: Piece) -> dict[str, Any]:
        """A piece's text with the unsent tokens up to it."""
        index = choice.request.index
        begin, end = self._sent[index], piece.num_tokens
        self._sent[index] = end
        news: dict[str, Any] = {"text": piece.text, "tokens": choice.token_ids[begin:end]}
        if len(self._sent) > 1:
            news["index"] = index
        if choice.scored:
            news["logprobs"] = [_scores(logprobs) for logprobs in piece.logprobs]
        return news


def _scores(logprobs: TokenLogprobs) -> dict[str, Any]:
    """`top`: token ids and their log-probabilities, likeliest first."""
    top = zip(logprobs.top_token_ids, map(finite, logprobs.top_logprobs), strict=True)
    return {"logprob": finite(logprobs.logprob), "top": list(top)}


def _end(generation: Generation) -> dict[str, Any]:
    return {
        "finish_reason": generation.finish_reason,
        "prompt_tokens": len(generation.request.prompt_token_ids),
        "timings": _seconds(generation.timings),
    }


def _seconds(timings: Timings) -> dict[str, float | None]:
    """Seconds since arrival."""

    def since_arrival(moment: float | None) -> float | None:
        return None if moment is None else round(moment - timings.arrived, 6)

    return {
        "queue_seconds": since_arrival(timings.admitted),
        "ttft_seconds": since_arrival(timings.first_token),
        "total_seconds": since_arrival(timings.finished),
    }


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"

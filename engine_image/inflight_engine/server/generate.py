"""POST /v1/generate: this server's own endpoint, with token ids and timings."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Response

from inflight_engine.server.endpoint import ServiceOf, start
from inflight_engine.server.generation import Generation, Timings
from inflight_engine.server.respond import GenerationResponse
from inflight_engine.server.schema import GenerateRequest

router = APIRouter()


@router.post("/v1/generate")
async def generate(body: GenerateRequest, service: ServiceOf) -> Response:
    """Text, tokens, finish reason and timings for one prompt; `max_tokens` defaults to what the context leaves."""
    prompt = body.prompt
    generation = await start(
        service,
        body,
        lambda tokenizer: tokenizer.encode(prompt) if isinstance(prompt, str) else prompt,
        size=len(prompt),
        max_tokens=body.max_tokens,
        default_max_tokens=None,
        prompt_field="prompt",
    )
    return GenerationResponse(service, generation, GenerateAnswer())


class GenerateAnswer:
    """`tokens` are all that were sampled, a stop token included. In a stream text may lag behind its tokens while it
    could become a stop string or a character is not complete."""

    def __init__(self) -> None:
        self._sent = 0

    def whole(self, generation: Generation, text: str) -> bytes:
        return msgspec.json.encode({"text": text, "tokens": generation.token_ids, **_end(generation)})

    def first(self) -> bytes:
        return b""

    def piece(self, generation: Generation, text: str) -> bytes:
        return _event({"text": text, "tokens": self._unsent(generation)})

    def last(self, generation: Generation) -> bytes:
        return _event({"text": "", "tokens": self._unsent(generation), **_end(generation)})

    def _unsent(self, generation: Generation) -> list[int]:
        tokens = generation.token_ids[self._sent :]
        self._sent += len(tokens)
        return tokens


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

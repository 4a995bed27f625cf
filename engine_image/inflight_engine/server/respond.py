"""One generation as an HTTP response, streamed or whole; a client that leaves ends it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inflight_engine.request import FinishReason
from inflight_engine.server.errors import ApiError
from inflight_engine.server.generation import Generation
from inflight_engine.server.service import Service

_EVENT_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx, and proxies that follow it, would otherwise collect the stream.
    "x-accel-buffering": "no",
}


class AnswerFormat(Protocol):
    """How an endpoint writes an answer. Each method returns bytes of the body; the last three make a stream."""

    def whole(self, generation: Generation, text: str) -> bytes: ...

    def first(self) -> bytes: ...

    def piece(self, generation: Generation, text: str) -> bytes: ...

    def last(self, generation: Generation) -> bytes: ...


class GenerationResponse(Response):
    """Waits for tokens and writes them. Headers go out with the first token, so that what fails before has a status."""

    def __init__(self, service: Service, generation: Generation, answer: AnswerFormat) -> None:
        super().__init__()
        self._service = service
        self._generation = generation
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            if self._generation.request.streaming:
                await self._stream(send)
            else:
                await self._whole(send)
        finally:
            watch.cancel()
            self._abandon()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._abandon()

    def _abandon(self) -> None:
        self._service.end(self._generation, FinishReason.ABORT)

    async def _whole(self, send: Send) -> None:
        generation = self._generation
        while not generation.done:
            await generation.wait()
        if generation.error is not None:
            await send_error(send, generation.error)
        elif generation.finish_reason is not FinishReason.ABORT:
            body = self._answer.whole(generation, generation.take())
            await _send_all(send, 200, {"content-type": "application/json"}, body)

    async def _stream(self, send: Send) -> None:
        generation, started = self._generation, False
        while True:
            await generation.wait()
            done, error = generation.done, generation.error
            if error is not None and not started:
                await send_error(send, error)
                return
            if error is None and generation.finish_reason is FinishReason.ABORT:
                return
            chunks = []
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": _raw(_EVENT_STREAM)})
                chunks.append(self._answer.first())
                started = True
            text = generation.take()
            if text:
                chunks.append(self._answer.piece(generation, text))
            if error is not None:
                chunks.append(error.event())
            elif done:
                chunks.append(self._answer.last(generation))
                chunks.append(b"data: [DONE]\n\n")
            if chunks:
                await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": not done})
            if done:
                return


async def send_error(send: Send, error: ApiError) -> None:
    """A whole response that says `error`."""
    await _send_all(send, error.status, error.all_headers(), error.body())


async def _send_all(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    raw = _raw({**headers, "content-length": str(len(body))})
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

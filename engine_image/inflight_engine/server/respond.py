"""Answers as an HTTP response, streamed or whole; a client that leaves ends them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inflight_engine.request import FinishReason
from inflight_engine.server.call import Call
from inflight_engine.server.errors import ApiError
from inflight_engine.server.generation import Generation, Piece
from inflight_engine.server.service import Service

_EVENT_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx, and proxies that follow it, would otherwise collect the stream.
    "x-accel-buffering": "no",
}

_MANY_SCORED_TOKENS = 256
"""With 20 likeliest tokens each, writing so many (about 17 ms) would hold up the streams of others."""


class AnswerFormat(Protocol):
    """How an endpoint writes an answer. Each method returns bytes of the body; all but the first make a stream."""

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        """`pieces`: of the choices, in their order, complete."""
        ...

    def first(self) -> bytes: ...

    def piece(self, choice: Generation, piece: Piece) -> bytes: ...

    def last(self, choice: Generation) -> bytes:
        """This choice is complete."""
        ...

    def end(self) -> bytes:
        """All choices are."""
        ...


class GenerationResponse(Response):
    """Waits for tokens and writes them. Headers go out with the first token, so that what fails before has a status.

    A choice that fails fails the answer; whatever ends it, no choice runs on.
    """

    def __init__(self, service: Service, call: Call, answer: AnswerFormat) -> None:
        super().__init__()
        self._service = service
        self._call = call
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            if self._call.streaming:
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
        for generation in self._call.choices:
            self._service.end(generation, FinishReason.ABORT)

    async def _whole(self, send: Send) -> None:
        call = self._call
        while not call.done and call.error is None:
            await call.inbox.wait()
        if call.error is not None:
            await send_error(send, call.error)
        elif not call.abandoned:
            pieces = [generation.take() for generation in call.choices]
            if sum(len(piece.tokens) for piece in pieces) < _MANY_SCORED_TOKENS:
                body = self._answer.whole(pieces)
            else:
                body = await asyncio.to_thread(self._answer.whole, pieces)
            await _send_all(send, 200, {"content-type": "application/json"}, body)

    async def _stream(self, send: Send) -> None:
        call, started, complete = self._call, False, False
        while not complete:
            changed = await call.inbox.wait()
            # All chunks before the first `send`: news that come while it waits belong to the next round.
            chunks = [] if started else [self._answer.first()]
            ended = False
            for generation in changed:
                piece = generation.take()
                if piece.text or piece.tokens:
                    chunks.append(self._answer.piece(generation, piece))
                    generation.logprobs.clear()
                if generation.done:
                    ended = True
                    if generation.error is None:
                        chunks.append(self._answer.last(generation))
            if ended:
                error = call.error
                if error is not None and not started:
                    await send_error(send, error)
                    return
                if error is None and call.abandoned:
                    return
                complete = error is not None or call.done
                if complete:
                    chunks.append(self._answer.end() + b"data: [DONE]\n\n" if error is None else error.event())
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": _raw(_EVENT_STREAM)})
                started = True
            if chunks:
                await send({"type": "http.response.body", "body": b"".join(chunks), "more_body": not complete})


def error_response(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.all_headers())


async def send_error(send: Send, error: ApiError) -> None:
    """A whole response that says `error`."""
    await _send_all(send, error.status, error.all_headers(), error.body())


async def _send_all(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    raw = _raw({**headers, "content-length": str(len(body))})
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

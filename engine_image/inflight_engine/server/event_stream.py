"""Answers as server-sent events, written where their tokens are handed over: no task is switched to for a token."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Protocol

from starlette.types import Send

from inflight_engine.server.call import Call
from inflight_engine.server.generation import Generation, Piece
from inflight_engine.server.send import raw_headers, send_error

_EVENT_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx, and proxies that follow it, would otherwise collect the stream.
    "x-accel-buffering": "no",
}


MANY_SCORED_TOKENS = 256
"""With 20 likeliest tokens each, formatting so many (about 17 ms) would hold up other streams: a thread does it."""


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


class EventStream:
    """Writes the events of a call. Its headers go out with the first token, so that what fails before has a status.

    `write` runs the server's `send` as far as it goes without waiting, which is to its end while the client reads. A
    client that does not is waited for in a task, and what is new meanwhile is written after that, together.

    Args:
        send: for the head, or for a whole response.
        send_body: for what follows the head.

    Attributes:
        complete: done when all is written, or when nothing more may be.
    """

    def __init__(self, call: Call, answer: AnswerFormat, send: Send, send_body: Send) -> None:
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call = call
        self._answer = answer
        self._send = send
        self._send_body = send_body
        self._started = False
        self._sending: asyncio.Task[None] | None = None
        self._unwritten: dict[Generation, None] = {}

    def write(self, changed: Sequence[Generation]) -> None:
        """Write what these generations have to send."""
        if self._sending is not None:
            self._unwritten.update(dict.fromkeys(changed))
            return
        if self.complete.done():
            return
        try:
            sending = self._write(changed)
            waits_for = sending.send(None)
        except StopIteration as end:
            self._written(last=end.value)
        except Exception as error:
            self.complete.set_exception(error)
        else:
            self._sending = asyncio.create_task(self._finish(_Resumed(sending, waits_for)))

    async def _finish(self, sending: _Resumed) -> None:
        try:
            last = await sending
        except Exception as error:
            if not self.complete.done():
                self.complete.set_exception(error)
            return
        self._sending = None
        self._written(last=last)
        if self._unwritten:
            changed, self._unwritten = [*self._unwritten], {}
            self.write(changed)

    def _written(self, *, last: bool) -> None:
        if last and not self.complete.done():
            self.complete.set_result(None)

    async def _write(self, changed: Sequence[Generation]) -> bool:
        """One message for all events. Returns whether it is the last."""
        call = self._call
        chunks = [] if self._started else [self._answer.first()]
        ended = complete = False
        pieces = [(generation, generation.take()) for generation in changed]
        if sum(piece.num_scored for _, piece in pieces) >= MANY_SCORED_TOKENS and call.error is None:
            chunks += await asyncio.to_thread(self._format, pieces)
            await self._send_events(chunks, more=True)
            self._unwritten.update(dict.fromkeys(changed))  # also those that have ended: that is to be written
            return False
        for generation, piece in pieces:
            if not piece.empty:
                chunks.append(self._answer.piece(generation, piece))
                generation.logprobs.clear()
            if generation.done:
                ended = True
                if generation.error is None:
                    chunks.append(self._answer.last(generation))
        if ended:
            error = call.error
            if error is not None and not self._started:
                await send_error(self._send, error)
                return True
            if error is None and call.abandoned:
                return True
            complete = error is not None or call.done
            if complete:
                chunks.append(self._answer.end() + b"data: [DONE]\n\n" if error is None else error.event())
        await self._send_events(chunks, more=not complete)
        return complete

    def _format(self, pieces: Sequence[tuple[Generation, Piece]]) -> list[bytes]:
        return [self._answer.piece(generation, piece) for generation, piece in pieces if not piece.empty]

    async def _send_events(self, chunks: Sequence[bytes], *, more: bool) -> None:
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": raw_headers(_EVENT_STREAM)})
        if chunks:
            await self._send_body({"type": "http.response.body", "body": b"".join(chunks), "more_body": more})


class _Resumed:
    """A coroutine that was run up to where it waits for something, to be awaited from there on."""

    def __init__(self, coroutine: Coroutine[Any, Any, bool], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, bool]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    yield waits_for
                except BaseException as error:
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(None)
        except StopIteration as end:
            return bool(end.value)
        finally:
            self._coroutine.close()

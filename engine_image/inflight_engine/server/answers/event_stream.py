"""Responses as server-sent events, written in the call that delivers their tokens: no task switch per token."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from starlette.types import Send

from inflight_engine.server.answers.send import raw_headers, send_error
from inflight_engine.server.errors import ApiError
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.requests.piece import NO_PIECE, Piece

EVENT_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx, and proxies that follow it, would otherwise buffer the stream.
    "x-accel-buffering": "no",
}

DONE = b"data: [DONE]\n\n"


MANY_SCORED_TOKENS = 256
"""With 20 likeliest tokens each, formatting so many (about 17 ms) would hold up other streams: a thread does it."""


class AnswerFormat(Protocol):
    """How an endpoint formats a response. Each method returns bytes of the body; all except the first are for streams.

    Attributes:
        names_tokens: events have the ids of tokens.
    """

    names_tokens: bool

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        """`pieces`: of the choices, in their order, complete."""
        ...

    def first(self) -> bytes: ...

    def piece(self, choice: Generation, piece: Piece) -> bytes: ...

    def last(self, choice: Generation, piece: Piece) -> bytes:
        """This choice is complete, with this piece."""
        ...

    def end(self) -> bytes:
        """All choices are."""
        ...


class Taken(NamedTuple):
    """Unsent data of a choice. `done`: this is its end."""

    choice: Generation
    piece: Piece
    done: bool


class EventStream:
    """Writes the events of a call. Its headers are sent with the first token, so that earlier failures have a status
    code.

    `write` runs the server's `send` until it blocks; while the client reads, it runs to its end. If the client does not
    read, a task waits, and data that arrives meanwhile is written afterwards in one piece.

    Args:
        send: for the head, or for a whole response.
        send_body: for data after the head.

    Attributes:
        complete: done when all data is written, or no more may be written.
    """

    def __init__(self, call: Call, answer: AnswerFormat, send: Send, send_body: Send) -> None:
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call = call
        self._answer = answer
        self._send = send
        self._send_body = send_body
        self._started = False
        self._first_due = True
        self._sending: asyncio.Task[None] | None = None
        self._unwritten: dict[Generation, None] = {}
        self._ended: set[Generation] = set()
        """Choices whose end is written."""

    def write(self, changed: Sequence[Generation]) -> None:
        """Write the unsent data of these generations."""
        if self._sending is not None:
            self._unwritten.update(dict.fromkeys(changed))
        elif not self.complete.done():
            self._run(self._write(changed))

    def _run(self, writing: Coroutine[Any, Any, bool]) -> None:
        """Write until the call blocks. The writer returns whether this is the last write."""
        try:
            waits_for = writing.send(None)
        except StopIteration as end:
            self._written(last=end.value)
        except Exception as error:
            self.complete.set_exception(error)
        else:
            self._sending = asyncio.create_task(self._finish(_Resumed(writing, waits_for)))

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

    async def _write(self, changed: Iterable[Generation]) -> bool:
        """One message for all events. Returns whether it is the last."""
        call = self._call
        taken = [self._take(choice) for choice in changed if choice not in self._ended]
        if sum(each.piece.num_scored for each in taken) >= MANY_SCORED_TOKENS and call.error is None:
            chunks = await asyncio.to_thread(self._format, taken)
        else:
            chunks = self._format(taken)
        if self._first_due and (chunks or not self._started):
            self._first_due = False
            chunks.insert(0, self._answer.first())
        ended = [each.choice for each in taken if each.done]
        self._ended.update(ended)
        complete = False
        if ended:
            error = call.error
            if error is not None and not self._started:
                await send_error(self._send, error)
                return True
            if error is None and call.abandoned:
                return True
            complete = error is not None or len(self._ended) == len(call.choices)
            if complete:
                chunks.append(await self._end() if error is None else self._error(error))
        await self._send_events(chunks, more=not complete)
        return complete

    def _take(self, choice: Generation) -> Taken:
        return Taken(choice, choice.take(), choice.done)

    def _format(self, taken: Sequence[Taken]) -> list[bytes]:
        """May run in a thread: reads no state that new tokens change."""
        chunks = []
        for choice, piece, done in taken:
            rest = piece
            if not piece.empty:
                chunks.append(self._answer.piece(choice, piece))
                rest = NO_PIECE._replace(num_tokens=piece.num_tokens)
            if done and choice.error is None:
                chunks.append(self._answer.last(choice, rest))
        return chunks

    async def _end(self) -> bytes:
        """Data after the last choice."""
        return self._answer.end() + DONE

    def _error(self, error: ApiError) -> bytes:
        """The end of a failed response."""
        return error.event()

    async def _send_events(self, chunks: Sequence[bytes], *, more: bool) -> None:
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": raw_headers(EVENT_STREAM)})
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

"""Responses of generations, written in the call that delivers their tokens: no task switch per token.

An answer is streamed, or whole. A client gets the answer; a relay gets frames, with progress in comments beside it, so
that another replica can continue the answer (docs/engine.md, Progress frames). A frame ends with an empty line. A relay
takes whole frames only, so the reported tokens and their text are in the same frame.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
from starlette.types import Send

from inflight_contract.channels import CHANNEL_HEADER
from inflight_contract.errors import ApiError
from inflight_contract.tenants import PROGRESS_HEADER
from inflight_engine.server.answers.send import raw_headers, send_all
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.choice_text import NO_PIECE, Piece
from inflight_engine.server.requests.generation import Generation

EVENT_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx, and proxies that follow it, would otherwise buffer the stream.
    "x-accel-buffering": "no",
}

DONE = b"data: [DONE]\n\n"
_HEARTBEAT = b":h\n\n"

MANY_SCORED_TOKENS = 256
"""Number of scored tokens from which a thread formats them: with 20 likeliest tokens each, this many take about 17 ms,
which would delay other streams."""


class AnswerFormat(ABC):
    """Formats the response of an endpoint. Each method returns bytes of the body; all except the first are for streams.

    Attributes:
        names_tokens: events have the ids of tokens.
        done: ends a stream for a client.
    """

    names_tokens = False
    done = DONE

    @abstractmethod
    def whole(self, pieces: Sequence[Piece]) -> bytes:
        """`pieces`: of the choices, in their order, complete."""

    @abstractmethod
    def first(self) -> bytes: ...

    @abstractmethod
    def piece(self, choice: Generation, piece: Piece) -> bytes: ...

    @abstractmethod
    def last(self, choice: Generation, piece: Piece) -> bytes:
        """This choice is complete, with this piece."""

    @abstractmethod
    def end(self) -> bytes:
        """All choices are."""

    def error_body(self, error: ApiError) -> bytes:
        """A whole response that says the error."""
        return error.body()

    def failure(self, error: ApiError) -> bytes:
        """The end of a stream that failed."""
        return b"data: " + error.body() + b"\n\n"


Taken: TypeAlias = tuple[Generation, Piece, bool]
"""Unsent data of a choice, and whether this is its end."""


class AnswerWriter:
    """Writes the response of a call. The headers for a client are sent with the first data, or with the first heartbeat
    of a stream, so that earlier failures have a status code; those for a relay when the request is in the queue: what
    fails after that is a frame.

    `write` runs the server's `send` until it blocks; while the client reads, it runs to its end. If the client does not
    read, a task waits, and data that arrives meanwhile is written afterwards in one piece.

    Events for a relay that show token ids or log-probabilities report the tokens that they show. Where
    log-probabilities wait for the text of their tokens, the whole event waits: the tokens before them may not tell
    which text was let out. A relay does not keep log-probabilities, so another replica restarts a whole response that
    has them (`continuation.earlier_of`). Tokens and ends that were reported are not reported again.

    Args:
        send: for the head, or for a whole response.
        send_body: for data after the head.
        number: of the stream in a relay's channel; 0: it is not in one; None: channels are not offered.

    Attributes:
        complete: done when all data is written, or no more may be written.
        written_at: monotonic time of the last write; before the first one, of the beginning.
        host: address at which its client reached this server.
    """

    def __init__(self, call: Call, answer: AnswerFormat, send: Send, send_body: Send, number: int | None = 0) -> None:
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.host = ""
        self._call = call
        self._answer = answer
        self._send = send
        self._send_body = send_body
        self._number = number
        self._started = False
        self._sending: asyncio.Task[None] | None = None
        self._unwritten: dict[Generation, None] = {}
        self._ended = {choice for choice in call.choices if call.relayed and choice.written}
        """Choices whose end is written."""
        self._reported = [choice.request.num_reported for choice in call.choices]
        """Tokens of each choice that a relay has."""
        self._first_due = not any(self._reported) and not self._ended
        self._blocks = call.blocks
        """Names of the prompt's blocks that are not written: with the first token, when all of them are there."""
        self._source = b""
        """Name of this replica, for a note; empty: none is to be written."""
        self._source_due = False
        self.written_at = time.monotonic()

    def begin(self) -> None:
        """Write the head for a relay, the seeds that were drawn, and the end of an answer of which nothing else is
        left."""
        self._run(self._begin())

    def write(self, changed: Sequence[Generation]) -> None:
        """Write the unsent data of these generations."""
        if self._sending is not None:
            self._unwritten.update(dict.fromkeys(changed))
        elif not self.complete.done():
            self._run(self._write(changed))

    def name_source(self, name: str, *, at_once: bool = True) -> None:
        """Tell a relay that another replica should go on with the answer, and the name of this one as a source of keys
        and values.

        Args:
            at_once: with the next data at the latest; otherwise behind the first token of each choice.
        """
        self._source, self._source_due = name.encode(), at_once
        if at_once and self._sending is None and not self.complete.done():
            self._run(self._send_chunks([]))

    def beat(self) -> None:
        """Write a heartbeat, unless the client does not read."""
        if self._sending is None and not self.complete.done():
            self._run(self._send_chunks([_HEARTBEAT]))

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

    async def _begin(self) -> bool:
        drawn = [choice.request for choice in self._call.choices if choice.request.seed_drawn]
        seeds = b"".join(b":s %d %d\n" % (request.index, request.sampling.seed) for request in drawn)
        chunks = [seeds + b"\n" if seeds else _HEARTBEAT]
        complete = len(self._ended) == len(self._call.choices)
        if complete:
            chunks.append(await self._end())
        return await self._send_chunks(chunks, last=complete)

    async def _write(self, changed: Iterable[Generation]) -> bool:
        """Write one message with all chunks. Returns whether it is the last."""
        call = self._call
        taken = [self._take(choice) for choice in changed if choice not in self._ended and not self._holds_back(choice)]
        if sum(piece.num_scored for _, piece, _ in taken) >= MANY_SCORED_TOKENS and call.error is None:
            chunks = await asyncio.to_thread(self._format, taken)
        else:
            chunks = self._format(taken)
        ended = [choice for choice, _, done in taken if done]
        self._ended.update(ended)
        error = call.error if ended else None
        if error is not None and not self._started:
            await send_all(self._send, error.status, error.all_headers(), self._answer.error_body(error))
            return True
        if ended and error is None and call.abandoned:
            return True
        last = error is not None or (bool(ended) and len(self._ended) == len(call.choices))
        if not (call.streaming or call.relayed):
            if last:
                await send_all(self._send, 200, {"content-type": "application/json"}, await self._whole())
            return last
        if self._first_due and (chunks or not self._started):
            self._first_due = False
            chunks.insert(0, self._answer.first())
        if self._blocks and chunks:
            chunks.insert(0, b":b %b\n\n" % self._blocks)
            self._blocks = b""
        if last:
            chunks.append(await self._end() if error is None else self._error(error))
        elif self._source and not self._source_due and all(each.token_ids for each in call.choices):
            chunks.append(b":c %d\n:d %b\n\n" % (call.num_cached_tokens, self._source))
            self._source = b""
        return await self._send_chunks(chunks, last=last)

    def _take(self, choice: Generation) -> Taken:
        return choice, choice.take() if self._call.streaming else NO_PIECE, choice.done

    def _holds_back(self, choice: Generation) -> bool:
        """The data of a choice comes with its next token."""
        return self._call.relayed and self._call.streaming and choice.holds_back and not choice.done

    def _format(self, taken: Sequence[Taken]) -> list[bytes]:
        """Frames, of which a client gets the events. May run in a thread: reads no state that new tokens change."""
        answer, relayed, chunks = self._answer, self._call.relayed, []
        for choice, piece, done in taken:
            failed, event = choice.error is not None, b""
            if failed and relayed:
                continue
            if self._call.streaming:
                rest = piece
                # A relay gets one event: a cut between text and end would leave open whether what was held back is
                # written.
                if not piece.empty and not (relayed and done):
                    event, rest = answer.piece(choice, piece), NO_PIECE._replace(num_tokens=piece.num_tokens)
                if done and not failed:
                    event += answer.last(choice, rest)
            comments = self._progress(choice, piece, done=done) if relayed else b""
            event = _in_one_frame(event) if relayed else event
            if comments or event:
                chunks.append(comments + (event or b"\n"))
        return chunks

    def _progress(self, choice: Generation, piece: Piece, *, done: bool) -> bytes:
        """Comments that report new tokens of a choice, and its end."""
        index, streaming = choice.request.index, self._call.streaming
        if not streaming:
            end = len(choice.token_ids)
        else:
            end = piece.num_tokens if done or not (piece.empty and self._answer.names_tokens) else 0
        begin, comments = self._reported[index], b""
        if end > begin:
            self._reported[index] = end
            comments = b":t %d %s\n" % (index, ",".join(map(str, choice.token_ids[begin:end])).encode())
        if done and (streaming or not choice.request.end_reported):
            comments += b":f %d %s\n" % (index, str(choice.finish_reason).encode())
        return comments

    async def _whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        pieces = [choice.take() for choice in self._call.choices]
        if sum(piece.num_scored for piece in pieces) < MANY_SCORED_TOKENS:
            return self._answer.whole(pieces)
        return await asyncio.to_thread(self._answer.whole, pieces)

    async def _end(self) -> bytes:
        """Data after the last choice."""
        call, usage = self._call, b""
        if call.relayed:
            counts = {
                "prompt_tokens": call.num_prompt_tokens,
                "cached_tokens": call.num_cached_tokens,
                "completion_tokens": call.num_output_tokens,
            }
            usage = b":u %s\n" % msgspec.json.encode(counts)
        if call.streaming:
            end = self._answer.end()
            return usage + _in_one_frame(end) + DONE if call.relayed else end + self._answer.done
        return usage + b":w 200\ndata: " + await self._whole() + b"\n\n"

    def _error(self, error: ApiError) -> bytes:
        """The end of a failed response."""
        # 503 is what another replica need not answer: this one drains, or its engine process or memory is gone.
        if not self._call.relayed:
            return self._answer.failure(error)
        advice = b"retry" if error.status == 503 else b"final"
        return b":e %d %s\ndata: %s\n\n" % (error.status, advice, self._answer.error_body(error))

    async def _send_chunks(self, chunks: Sequence[bytes], *, last: bool = False) -> bool:
        """Write chunks after the head; returns `last`."""
        if not self._started:
            self._started = True
            headers = EVENT_STREAM
            if self._call.relayed:
                headers = {**headers, PROGRESS_HEADER.lower(): "1"}
                if self._number is not None:
                    headers[CHANNEL_HEADER.lower()] = str(self._number)
            await self._send({"type": "http.response.start", "status": 200, "headers": raw_headers(headers)})
        if self._source and self._source_due:
            chunks, self._source = [b":d %b\n\n" % self._source, *chunks], b""
        if chunks:
            self.written_at = time.monotonic()
            await self._send_body({"type": "http.response.body", "body": b"".join(chunks), "more_body": not last})
        return last


def _in_one_frame(events: bytes) -> bytes:
    """Events of one frame: lines between them are empty but for a carriage return."""
    return events[:-2].replace(b"\n\n", b"\n\r\n") + events[-2:]


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

"""Responses for a relay, with progress in comments of the event stream, so that another replica can continue them
(docs/engine.md, Progress frames).

A frame ends with an empty line. A relay takes whole frames only, so the reported tokens and their text are in the same
frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec
from starlette.types import Send

from inflight_engine.server.answers.event_stream import (
    DONE,
    EVENT_STREAM,
    MANY_SCORED_TOKENS,
    AnswerFormat,
    EventStream,
    Taken,
)
from inflight_engine.server.answers.send import raw_headers
from inflight_engine.server.errors import ApiError
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.requests.piece import NO_PIECE

PROGRESS_HEADER = "x-inflight-progress"
"""Of a request, `1`: its answer is to be written so. Of a response: it is."""

_HEARTBEAT = b":h\n\n"


class ProgressStream(EventStream):
    """Writes a streamed answer. Its headers go out when the request is in the queue: what fails after that is a frame.

    Events of an answer that shows token ids or log-probabilities report the tokens that they show. Where
    log-probabilities wait for the text of their tokens, the whole event waits: the tokens before them may not tell
    which text was let out.
    """

    def __init__(self, call: Call, answer: AnswerFormat, send: Send, send_body: Send) -> None:
        super().__init__(call, answer, send, send_body)
        self._ended = {choice for choice in call.choices if choice.written}
        self._reported = [choice.request.num_reported for choice in call.choices]
        """Tokens of each choice."""
        self._first_due = not any(self._reported) and not self._ended
        self._quiet = False
        """Nothing was written since the heartbeat was asked for last."""

    def begin(self) -> None:
        """Write the head and the seeds that were drawn, and the end of an answer of which nothing else is left."""
        self._run(self._begin())

    def beat(self) -> None:
        """Write a heartbeat, if nothing was written since the last call."""
        if self._quiet and self._sending is None and not self.complete.done():
            self._run(self._beat())
        self._quiet = True

    async def _begin(self) -> bool:
        self._started = True
        headers = raw_headers({**EVENT_STREAM, PROGRESS_HEADER: "1"})
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        drawn = [choice.request for choice in self._call.choices if choice.request.seed_drawn]
        seeds = b"".join(b":s %d %d\n" % (request.index, request.sampling.seed) for request in drawn)
        complete = len(self._ended) == len(self._call.choices)
        chunks = [seeds + b"\n" if seeds else _HEARTBEAT]
        if complete:
            chunks.append(await self._end())
        await self._send_events(chunks, more=not complete)
        return complete

    async def _beat(self) -> bool:
        await self._send_events([_HEARTBEAT], more=True)
        return False

    async def _write(self, changed: Iterable[Generation]) -> bool:
        # The news of one that holds back come with its next token.
        return await super()._write([choice for choice in changed if choice.done or not choice.holds_back])

    def _format(self, taken: Sequence[Taken]) -> list[bytes]:
        frames = []
        for choice, piece, done in taken:
            if choice.error is not None:
                continue
            shown = done or not piece.empty or not self._answer.names_tokens
            comments = self._tokens(choice, piece.num_tokens if shown else 0)
            if done:
                # One event: a cut between text and end would leave open whether what was held back is written.
                comments += _end_of(choice)
                event = self._answer.last(choice, piece)
            else:
                event = b"" if piece.empty else self._answer.piece(choice, piece)
            if comments or event:
                frames.append(comments + (event or b"\n"))
        return frames

    def _tokens(self, choice: Generation, end: int) -> bytes:
        """The comment that reports a choice's tokens up to this one; empty without new ones."""
        index = choice.request.index
        begin = self._reported[index]
        if end <= begin:
            return b""
        self._reported[index] = end
        return b":t %d %s\n" % (index, ",".join(map(str, choice.token_ids[begin:end])).encode())

    def _usage(self) -> bytes:
        call = self._call
        return b":u %s\n" % msgspec.json.encode(
            {
                "prompt_tokens": call.num_prompt_tokens,
                "cached_tokens": call.num_cached_tokens,
                "completion_tokens": call.num_output_tokens,
            }
        )

    async def _end(self) -> bytes:
        return self._usage() + self._answer.end() + DONE

    def _error(self, error: ApiError) -> bytes:
        # 503 is what another replica need not answer: this one drains, or its engine process or memory is gone.
        return b":e %d %s\n" % (error.status, b"retry" if error.status == 503 else b"final") + error.event()

    async def _send_events(self, chunks: Sequence[bytes], *, more: bool) -> None:
        if chunks:
            self._quiet = False
        await super()._send_events(chunks, more=more)


class WholeProgress(ProgressStream):
    """Writes an answer that is not streamed: its progress, then the whole body in one event.

    A relay does not keep log-probabilities, so another replica restarts a response that has them
    (`continuation.earlier_of`). Tokens and ends that were reported are not reported again.
    """

    async def _write(self, changed: Iterable[Generation]) -> bool:
        return await EventStream._write(self, changed)

    def _take(self, choice: Generation) -> Taken:
        return Taken(choice, NO_PIECE, choice.done)

    def _format(self, taken: Sequence[Taken]) -> list[bytes]:
        frames = []
        for choice, _, done in taken:
            if choice.error is not None:
                continue
            comments = self._tokens(choice, len(choice.token_ids))
            if done and not choice.request.end_reported:
                comments += _end_of(choice)
            if comments:
                frames.append(comments + b"\n")
        return frames

    async def _end(self) -> bytes:
        pieces = [choice.take() for choice in self._call.choices]
        if sum(piece.num_scored for piece in pieces) < MANY_SCORED_TOKENS:
            body = self._answer.whole(pieces)
        else:
            body = await asyncio.to_thread(self._answer.whole, pieces)
        return self._usage() + b":w 200\ndata: " + body + b"\n\n"


def _end_of(choice: Generation) -> bytes:
    return b":f %d %s\n" % (choice.request.index, str(choice.finish_reason).encode())

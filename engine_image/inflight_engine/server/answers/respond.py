"""HTTP responses of generations, streamed or whole; a disconnecting client aborts them at once."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inflight_engine.request import FinishReason
from inflight_engine.server.answers.event_stream import MANY_SCORED_TOKENS, AnswerFormat, EventStream
from inflight_engine.server.answers.heartbeats import Heartbeats
from inflight_engine.server.answers.progress_frames import ProgressStream, WholeProgress
from inflight_engine.server.answers.send import send_all, send_error, server_send
from inflight_engine.server.errors import ApiError
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.requests.registry import RequestRegistry


class GenerationResponse(Response):
    """Waits for tokens and writes them. Headers are sent with the first token, so that earlier failures have a status
    code. A failed choice fails the response; after its end, no choice continues to run.
    """

    def __init__(self, registry: RequestRegistry, heartbeats: Heartbeats, call: Call, answer: AnswerFormat) -> None:
        super().__init__()
        self._registry = registry
        self._heartbeats = heartbeats
        self._call = call
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            if self._call.relayed:
                await self._relayed(send, server_send(scope))
            elif self._call.streaming:
                await self._stream(send, server_send(scope))
            else:
                await self._whole(send)
        finally:
            watch.cancel()
            self._call.inbox.close()
            self._abandon()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._abandon()

    def _abandon(self) -> None:
        for generation in self._call.choices:
            self._registry.end(generation, FinishReason.ABORT)

    async def _whole(self, send: Send) -> None:
        call = self._call
        complete = asyncio.get_running_loop().create_future()

        def read(_: list[Generation]) -> None:
            if (call.done or call.error is not None) and not complete.done():
                complete.set_result(None)

        call.inbox.read(read)
        await complete
        if call.error is not None:
            await send_error(send, call.error)
        elif not call.abandoned:
            pieces = [generation.take() for generation in call.choices]
            if sum(piece.num_scored for piece in pieces) < MANY_SCORED_TOKENS:
                body = self._answer.whole(pieces)
            else:
                body = await asyncio.to_thread(self._answer.whole, pieces)
            await send_all(send, 200, {"content-type": "application/json"}, body)

    async def _stream(self, send: Send, send_body: Send) -> None:
        stream = EventStream(self._call, self._answer, send, send_body)
        self._call.inbox.read(stream.write)
        await stream.complete

    async def _relayed(self, send: Send, send_body: Send) -> None:
        write = ProgressStream if self._call.streaming else WholeProgress
        stream, heartbeats = write(self._call, self._answer, send, send_body), self._heartbeats
        heartbeats.add(stream)
        try:
            stream.begin()
            self._call.inbox.read(stream.write)
            await stream.complete
        finally:
            heartbeats.remove(stream)


def error_response(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.all_headers())

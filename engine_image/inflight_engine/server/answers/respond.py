"""HTTP responses of generations, streamed or whole; a disconnecting client aborts them at once."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inflight_engine.request import FinishReason
from inflight_engine.server.answers.heartbeats import Heartbeats
from inflight_engine.server.answers.send import server_send
from inflight_engine.server.answers.writer import AnswerFormat, AnswerWriter
from inflight_engine.server.errors import ApiError
from inflight_engine.server.requests.call import Call
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
        call, heartbeats = self._call, self._heartbeats
        watch = asyncio.create_task(self._watch(receive))
        try:
            writer = AnswerWriter(call, self._answer, send, server_send(scope))
            if call.relayed:
                heartbeats.add(writer)
            try:
                if call.relayed:
                    writer.begin()
                call.inbox.read(writer.write)
                await writer.complete
            finally:
                if call.relayed:
                    heartbeats.remove(writer)
        finally:
            watch.cancel()
            call.inbox.close()
            self._abandon()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._abandon()

    def _abandon(self) -> None:
        for generation in self._call.choices:
            self._registry.end(generation, FinishReason.ABORT)


def error_response(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.all_headers())

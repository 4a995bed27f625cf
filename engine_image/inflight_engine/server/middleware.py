"""Around every request: give it an id, bound the body, count open responses, close connections while draining, log at
debug."""

from __future__ import annotations

import asyncio
import logging
import time
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight_engine.server.errors import ApiError
from inflight_engine.server.request_id import REQUEST_ID_HEADER, give_request_id
from inflight_engine.server.send import keep_server_send, send_error
from inflight_engine.server.service import Service

MAX_BODY_BYTES = 16 * 1024 * 1024
"""A prompt of a million tokens as text is 4 MB, as a list of ids 7 MB."""

log = logging.getLogger("inflight_engine.access")


class OpenResponses:
    """How many generation requests have no complete response yet."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> None:
        self._count += 1
        self._none.clear()

    def end(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._none.set()

    async def none_left(self) -> None:
        await self._none.wait()


class EdgeMiddleware:
    """Plain ASGI: no task and no copy per request or chunk."""

    def __init__(self, app: ASGIApp, service: Service, responses: OpenResponses) -> None:
        self._app = app
        self._service = service
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 0
        request_id = give_request_id(scope)
        keep_server_send(scope, send)

        async def send_edge(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                headers[REQUEST_ID_HEADER] = request_id
                if self._service.draining:
                    headers["connection"] = "close"
            await send(message)

        counted = scope["method"] == "POST" and scope["path"].startswith("/v1/")
        if counted:
            self._responses.begin()
        try:
            length = Headers(scope=scope).get("content-length", "0")
            if length.isdecimal() and int(length) > MAX_BODY_BYTES:
                await send_error(send_edge, too_large())
            else:
                await self._app(scope, _bounded(receive), send_edge)
        finally:
            if counted:
                self._responses.end()
            if log.isEnabledFor(logging.DEBUG):
                took = time.monotonic() - began
                log.debug(
                    "%s %s %s %d in %.3f s, request %s",
                    _peer(scope),
                    scope["method"],
                    quote(scope["path"]),  # a client may put a line break into it
                    status,
                    took,
                    request_id,
                )


def too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes, the most this server takes")


def _bounded(receive: Receive) -> Receive:
    """Bounds a body that comes without a length, in chunks."""
    total = 0

    async def bounded() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY_BYTES:
            raise HTTPException(413)
        return message

    return bounded


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "-"

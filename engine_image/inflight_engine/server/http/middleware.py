"""The frame of every request: request id, trace, count of open responses, access log. The middleware of HTTP adds the
body limit, and closes connections while draining."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight_contract.channels import CHANNEL_PATH
from inflight_contract.errors import ApiError, is_anthropic
from inflight_engine import logs
from inflight_engine.server.answers.send import keep_server_send
from inflight_engine.server.errors import error_response
from inflight_engine.server.service import Service
from inflight_engine.server.telemetry.access_log import AccessLog
from inflight_engine.server.telemetry.exchange import Exchange, keep_exchange
from inflight_settings.requests import MAX_BODY_BYTES

REQUEST_ID_HEADER = "x-request-id"

_KEY = "inflight.request_id"
_USABLE = re.compile(r"[!-~]{1,128}")


def give_request_id(scope: Scope) -> str:
    """Set the id of a new request. A header that is not one word of at most 128 ASCII characters is ignored."""
    given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    scope[_KEY] = chosen = given if _USABLE.fullmatch(given) else uuid.uuid4().hex
    return chosen


def request_id(scope: Scope) -> str:
    """The id of a request, set by `give_request_id`."""
    chosen: str = scope[_KEY]
    return chosen


class OpenResponses:
    """Number of generation requests without a complete response."""

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


class Edge:
    """Frames requests. `responses` counts unfinished ones."""

    def __init__(self, service: Service, responses: OpenResponses) -> None:
        self._service = service
        self._responses = responses
        self._access_log = AccessLog(service.config.access_log)

    @contextmanager
    def exchange(self, scope: Scope, *, counted: bool) -> Iterator[Exchange]:
        """The exchange of a request, while the block runs.

        Args:
            counted: a drain waits for its response.
        """
        request_id = give_request_id(scope)
        exchange = Exchange(request_id, time.monotonic())
        keep_exchange(scope, exchange)
        spans = self._service.spans
        # Not reset: the server runs each request in a context of its own, and logs there what the application raised.
        logs.current_request.set(
            logs.RequestIds(request_id) if spans is None else logs.RequestIds(request_id, *spans.begin(exchange, scope))
        )
        if counted:
            self._responses.begin()
        try:
            yield exchange
        except Exception:
            # What is outside of this answers so.
            exchange.status = exchange.status or 500
            raise
        finally:
            if counted:
                self._responses.end()
            exchange.ended = time.monotonic()
            if spans is not None:
                spans.end(exchange, scope)
            self._access_log.write(exchange, scope)


class EdgeMiddleware:
    """Plain ASGI: no task and no copy per request or chunk."""

    def __init__(self, app: ASGIApp, service: Service, responses: OpenResponses) -> None:
        self._app = app
        self._service = service
        self._edge = Edge(service, responses)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # A channel has no end of its own, and its body none.
        channel = scope["path"] == CHANNEL_PATH
        counted = scope["method"] == "POST" and not channel and not scope["path"].startswith("/admin/")
        with self._edge.exchange(scope, counted=counted) as exchange:
            keep_server_send(scope, send)

            async def send_edge(message: Message) -> None:
                if message["type"] == "http.response.start":
                    exchange.status = message["status"]
                    headers = MutableHeaders(raw=message["headers"])
                    headers[REQUEST_ID_HEADER] = exchange.request_id
                    if is_anthropic(scope["path"]):
                        headers["request-id"] = exchange.request_id
                    if self._service.draining:
                        headers["connection"] = "close"
                await send(message)

            length = Headers(scope=scope).get("content-length", "0")
            if length.isdecimal() and int(length) > MAX_BODY_BYTES:
                await error_response(too_large(), scope["path"])(scope, receive, send_edge)
            else:
                await self._app(scope, receive if channel else _bounded(receive), send_edge)


def too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes, the most this server takes")


def _bounded(receive: Receive) -> Receive:
    """Bounds a chunked body without a length."""
    total = 0

    async def bounded() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY_BYTES:
            raise HTTPException(413)
        return message

    return bounded

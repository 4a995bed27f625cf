"""ASGI middleware in vLLM's API process (`--middleware`): /ready, drain, requests' fields, and the admin port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Generator, Mapping

import prometheus_client
import uvicorn
from prometheus_client import REGISTRY

from inflight_contract.errors import ApiError
from inflight_settings.requests import MAX_BODY_BYTES
from inflight_vllm.admin import Admin, AdminPath, Answer
from inflight_vllm.asgi import App, Message, Receive, Scope, Send
from inflight_vllm.board import Board, board_path
from inflight_vllm.drain import Drain
from inflight_vllm.guard import Guard
from inflight_vllm.keep_alive import KeptAlive
from inflight_vllm.limits import LiveLimits
from inflight_vllm.page import PluginMetrics
from inflight_vllm.requests import RequestRules
from inflight_vllm.settings import read_settings
from inflight_vllm.versions import installed_version, problem

log = logging.getLogger("vllm.inflight")

_ADMIN_BODY_BYTES = 1 << 16
_SILENCE_S = 1.0
"""Seconds without a message after which a stream gets a comment."""
_REFUSED = 1008
"""Code of a WebSocket that is refused."""


class Inflight:
    """The middleware. vLLM makes it once the engine process is ready, and starts it with the server."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._settings = settings = read_settings(os.environ)
        self._guard = Guard()
        self._limits = LiveLimits(Board.open(board_path()), problem())
        # vLLM handles SIGINT as it handles SIGTERM, which is the drain's now.
        self._drain = Drain(settings.drain_delay, settings.drain_timeout, lambda: os.kill(os.getpid(), signal.SIGINT))
        ordered = self._limits.report.policy == "priority"
        self._rules = RequestRules(settings, ordered=ordered, clock=time.time)
        self._admin = Admin(self._limits, self._drain, _metrics)
        self._server: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI says."""
        if scope["type"] == "lifespan":
            self._guard.run(self._start, scope)
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket" or (scope["method"] == "POST" and scope["path"] != AdminPath.DRAIN):
            await self._generate(scope, receive, send)
        elif scope["path"] == "/ready":
            await self._ready(scope, receive, send)
        elif scope["path"] == AdminPath.LIMITS and scope["method"] == "GET":
            await _respond(send, self._admin.answer("GET", AdminPath.LIMITS, "", b""))
        elif scope["path"] in (AdminPath.LIMITS, AdminPath.DRAIN):
            port = self._settings.admin_port
            message = f"{scope['method']} {scope['path']} is served on port {port} only"
            await _respond(send, Answer.error(ApiError(404, message, code="admin_port")))
        else:
            await self._app(scope, receive, send)

    def _start(self, scope: Scope) -> None:
        limits, settings, version = self._limits, self._settings, installed_version()
        # What needs no names of vLLM comes first: it works, and the page says why, where one of them is missing.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._drain.signal)
        self._server = loop.create_task(_serve(self._admin, settings.admin_port))
        page = PluginMetrics(version, limits, self._drain, self._guard)
        REGISTRY.register(page)
        arguments = scope["app"].state.args
        page.model_name = (arguments.served_model_name or [arguments.model])[0]
        found = limits.report.problem
        if found is not None:
            log.warning("inflight: limits cannot be changed: %s; serving as vLLM does", found)
        limits.start(settings.limits_file)
        log.info(
            "inflight: ready with vLLM %s, limits %s, admin port %d", version, limits.in_force, settings.admin_port
        )

    async def _ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._drain.draining:
            reason = "running requests finish, then this server ends"
            await _respond(send, Answer.json({"status": "draining", "reason": reason}, 503))
        else:
            await self._app({**scope, "path": "/health", "raw_path": b"/health"}, receive, send)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _Headers(scope)
        try:
            tenant = self._rules.tenant(headers, headers.get("x-request-id"))
            self._drain.enter()
        except ApiError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": _REFUSED, "reason": ""})
            else:
                await _respond(send, Answer.error(error))
            return
        kept = KeptAlive(send, _SILENCE_S)
        try:
            if self._rules.changes_bodies(scope["path"], tenant):
                body = self._rules.body(await _body(receive, MAX_BODY_BYTES), tenant)
                scope, receive = _with_body(scope, receive, body)
            await self._app(scope, receive, self._closing(kept))
        except ApiError as error:
            await _respond(send, Answer.error(error))
        finally:
            kept.stop()
            self._drain.exit()

    def _closing(self, send: Send) -> Send:
        """Ask clients to close their connections while draining."""

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._drain.draining:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        return closing


class _Headers:
    def __init__(self, scope: Scope) -> None:
        self._pairs: list[tuple[bytes, bytes]] = scope["headers"]

    def getlist(self, key: str) -> list[str]:
        name = key.lower().encode()
        return [value.decode("latin-1") for each, value in self._pairs if each == name]

    def get(self, key: str) -> str:
        return next(iter(self.getlist(key)), "")


async def _body(receive: Receive, most: int) -> bytes:
    """
    Raises:
        ApiError: 413, the body is longer than `most` bytes.
    """
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > most:
            raise ApiError(413, f"the body is larger than {most} bytes, the most this server takes")
        if not message.get("more_body"):
            return bytes(body)


def _with_body(scope: Scope, receive: Receive, body: bytes) -> tuple[Scope, Receive]:
    """Return the request with another body."""
    headers = [pair for pair in scope["headers"] if pair[0] not in (b"content-length", b"transfer-encoding")]
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return whole.pop() if whole else await receive()

    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}, again


async def _respond(send: Send, answer: Answer) -> None:
    headers: Mapping[str, str] = {**answer.headers, "content-length": str(len(answer.body))}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
    await send({"type": "http.response.body", "body": answer.body})


def _metrics() -> tuple[bytes, str]:
    return prometheus_client.generate_latest(REGISTRY), prometheus_client.CONTENT_TYPE_LATEST


class _AdminServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to vLLM's server and the drain."""
        yield


async def _serve(admin: Admin, port: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _body(receive, _ADMIN_BODY_BYTES)
        except ApiError as error:
            await _respond(send, Answer.error(error))
            return
        authorization = _Headers(scope).get("authorization")
        await _respond(send, admin.answer(scope["method"], scope["path"], authorization, body))

    try:
        # Refuses a port in use itself, where uvicorn would end the process.
        listener = socket.create_server(("0.0.0.0", port))
    except OSError as error:
        log.error("inflight: no admin calls: port %d cannot be used: %s", port, error.strerror)
        return
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_level="warning")
    await _AdminServer(config).serve([listener])

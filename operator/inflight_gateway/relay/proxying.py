"""Requests that generate nothing: forwarded to an engine and back as streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflight_base.http.engine_pool import EngineConnection, EnginePool, Loss
from inflight_base.http.heads import (
    LAST_CHUNK,
    Headers,
    chunk,
    find,
    request_head,
)
from inflight_gateway.relay.http.client import Client, Request
from inflight_gateway.relay.http.errors import ClientError
from inflight_gateway.request.headers import of_answer

LOST = ClientError(502, "the connection to the engine broke off before it answered", "engine_lost", retry_after_s=1)
SILENT = ClientError(504, "the engine did not answer in time", "engine_silent", retry_after_s=1)


def start_proxied(client: Client, status: int, headers: Headers) -> None:
    """Start a forwarded response."""
    length = find(headers, b"content-length")
    client.start(status, of_answer(headers), None if length is None else int(length))


class PassThrough:
    """A forwarded request.

    Args:
        address: of the engine.
        ended: receives the status; 0: the client left before it.
        head_s: seconds from the end of the request in which the engine's response must begin.
    """

    def __init__(
        self,
        pool: EnginePool,
        address: str,
        request: Request,
        client: Client,
        ended: Callable[[int], None],
        head_s: float,
    ) -> None:
        self._pool = pool
        self._address = address
        self._request = request
        self._client = client
        self._ended = ended
        self._head_s = head_s
        self._timer: asyncio.TimerHandle | None = None
        self._call: EngineConnection
        self._chunked = request.length is None
        # Kept until the response begins, for another connection.
        self._parts: list[bytes] = []
        self._status = 0

    @property
    def begun(self) -> bool:
        """True if the client has the head of the response."""
        return self._status != 0

    # Called by the connection to the client.

    def begin(self) -> None:
        request = self._request
        headers = request.headers
        if self._chunked:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
        elif request.length:
            headers = [*headers, (b"content-length", b"%d" % request.length)]
        self._call = self._pool.call(self._address, self)
        self._write(request_head(request.method, request.target, headers))
        self._call.sent = request.length == 0

    def body(self, data: bytes) -> None:
        self._write(chunk(data) if self._chunked else data)

    def body_ended(self) -> None:
        if self._chunked:
            self._write(LAST_CHUNK)
        self._call.sent = True
        if not self._status:
            self._timer = asyncio.get_running_loop().call_later(self._head_s, self._silent)

    def _write(self, part: bytes) -> None:
        self._call.write(part, no_body=self._request.method == b"HEAD")
        if not self._status:
            self._parts.append(part)

    def left(self) -> None:
        self._stop_timer()
        self._call.cancel()
        self._ended(self._status)

    def client_writable(self, *, now: bool) -> None:
        if now:
            self._call.resume()
        else:
            self._call.pause()

    # Called by the connection to the engine.

    def head(self, status: int, headers: Headers) -> None:
        self._stop_timer()
        self._status = status
        self._parts.clear()
        start_proxied(self._client, status, headers)

    def data(self, data: bytes) -> None:
        self._client.write(data)

    def ended(self) -> None:
        self._ended(self._status)
        self._client.finish()

    def lost(self, loss: Loss) -> None:
        if loss is Loss.STALE:
            sent = self._call.sent
            self._call = self._pool.call(self._address, self, fresh=True)
            for part in self._parts:
                self._call.write(part, no_body=self._request.method == b"HEAD")
            self._call.sent = sent
            return
        self._stop_timer()
        self._ended(self._status or LOST.status)
        if self._status:
            self._client.abort()
        else:
            self._client.refuse(LOST)

    def engine_writable(self, *, now: bool) -> None:
        if now:
            self._client.resume()
        else:
            self._client.pause()

    def _silent(self) -> None:
        self._call.cancel()
        self._ended(SILENT.status)
        self._client.refuse(SILENT)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

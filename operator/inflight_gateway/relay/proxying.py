"""Non-generation requests: forwarded to the inner listener and back as streams."""

from __future__ import annotations

from inflight_gateway.relay.client import ClientConnection, Request
from inflight_gateway.relay.errors import ClientError
from inflight_gateway.relay.heads import (
    LAST_CHUNK,
    Headers,
    chunk,
    end_to_end,
    find,
    request_head,
    without,
    without_internal,
)
from inflight_gateway.relay.inner import InnerConnection, InnerPool

LOST = ClientError(502, "the connection to the service broke off before it answered", "service_lost")


def start_proxied(client: ClientConnection, status: int, headers: Headers) -> None:
    """Start a forwarded response: its headers without hop-by-hop and internal ones."""
    length = find(headers, b"content-length")
    headers = without(without_internal(end_to_end(headers)), b"content-length")
    client.start(status, headers, None if length is None else int(length))


class PassThrough:
    def __init__(self, pool: InnerPool, request: Request, client: ClientConnection) -> None:
        self._pool = pool
        self._request = request
        self._client = client
        self._call: InnerConnection
        self._chunked = request.length is None
        self._started = False

    # Called by the connection to the client.

    def begin(self) -> None:
        request = self._request
        headers = request.headers
        if self._chunked:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
        elif request.length:
            headers = [*headers, (b"content-length", b"%d" % request.length)]
        self._call = self._pool.call(self)
        self._call.write(request_head(request.method, request.target, headers), no_body=request.method == b"HEAD")
        self._call.sent = request.length == 0

    def body(self, data: bytes) -> None:
        self._call.write(chunk(data) if self._chunked else data)

    def body_ended(self) -> None:
        if self._chunked:
            self._call.write(LAST_CHUNK)
        self._call.sent = True

    def left(self) -> None:
        self._call.cancel()

    def client_writable(self, *, now: bool) -> None:
        if now:
            self._call.resume()
        else:
            self._call.pause()

    # Called by the connection to the inner listener.

    def head(self, status: int, headers: Headers) -> None:
        self._started = True
        start_proxied(self._client, status, headers)

    def data(self, data: bytes) -> None:
        self._client.write(data)

    def ended(self) -> None:
        self._client.finish()

    def lost(self, *, stale: bool) -> None:
        if self._started:
            self._client.abort()
        elif stale and self._request.length == 0 and self._request.method in (b"GET", b"HEAD"):
            self.begin()
        else:
            self._client.refuse(LOST)

    def inner_writable(self, *, now: bool) -> None:
        if now:
            self._client.resume()
        else:
            self._client.pause()

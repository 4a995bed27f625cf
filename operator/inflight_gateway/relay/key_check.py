"""Check of a request's API key before its body is read: bodies of clients without a key must not fill the memory."""

from __future__ import annotations

from collections.abc import Callable

from inflight_gateway.relay.client import Request
from inflight_gateway.relay.engine_pool import EnginePool
from inflight_gateway.relay.heads import Headers, find, request_head
from inflight_gateway.request import headers as names

_CHECK = names.CHECK_KEY.encode()
_OWN_REQUEST_ID = names.OWN_REQUEST_ID.encode()
_ATTEMPT = names.ATTEMPT.encode()


class KeyCheck:
    """Sends the head alone to the inner listener. Only a 401 with the picker's own header is a refusal: any other
    response, also of an engine where no picker runs, lets the request go on.

    Args:
        done: called once with the head and body of the refusal, or None.
    """

    def __init__(
        self, pool: EnginePool, request: Request, request_id: str, done: Callable[[tuple[Headers, bytes] | None], None]
    ) -> None:
        self._done = done
        self._refusal: tuple[Headers, list[bytes]] | None = None
        own = [(b"content-length", b"0"), (_OWN_REQUEST_ID, request_id.encode()), (_ATTEMPT, b"1"), (_CHECK, b"1")]
        self._call = pool.call(self)
        self._call.write(request_head(request.method, request.target, [*request.headers, *own]))
        self._call.sent = True

    def cancel(self) -> None:
        self._call.cancel()

    # Called by the connection to the inner listener.

    def head(self, status: int, headers: Headers) -> None:
        if status == 401 and find(headers, _CHECK) is not None:
            self._refusal = headers, []
        else:
            self._call.read_rest()
            self._done(None)

    def data(self, data: bytes) -> None:
        if self._refusal is not None:
            self._refusal[1].append(data)

    def ended(self) -> None:
        if self._refusal is not None:
            headers, parts = self._refusal
            self._done((headers, b"".join(parts)))

    def lost(self, *, stale: bool) -> None:
        self._done(None)

    def inner_writable(self, *, now: bool) -> None:
        """Ignores it: the head is short."""

"""The response with a metrics page, as a connection reads it: bounded, and part by part where it is large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflight_base.http.engine_pool import EngineConnection, EnginePool, Loss
from inflight_base.http.heads import Headers, find
from inflight_base.page.reader import PageError

MAX_BODY = 2**20
"""Most bytes of a metrics page. A whole page of vLLM has 50 to 100 kB for each of its engines."""

SMALL_PAGE = 2**17
"""Bytes of a page from which its reader asks for a place."""


class LostError(Exception):
    """There was no response, or none of HTTP; the message says why."""

    def __init__(self, loss: Loss, why: str) -> None:
        super().__init__(why)
        self.loss = loss


class PageResponse:
    """The response to one request for a page.

    Args:
        over: called once with this response at its end.
        large: called at most once, when it is large: it goes on after `resume`.

    Attributes:
        began: when the request was sent, on the monotonic clock.
        deadline: when the response must have ended, on the loop's clock.
        body: what was read of the page; bytes once the response has ended.
        error: why there is no page; None if there is one, and after `cancel`.
        place: the task that waits for a place, holds it, and takes the page; None for a small page.
        whole: set to tell it that the page was read.
    """

    __slots__ = (
        *("began", "body", "deadline", "error", "place", "whole"),
        *("_address", "_call", "_is_large", "_large", "_over", "_pool", "_request"),
    )

    def __init__(
        self,
        pool: EnginePool,
        began: float,
        deadline: float,
        over: Callable[[PageResponse], None],
        large: Callable[[PageResponse], None],
    ) -> None:
        self.began = began
        self.deadline = deadline
        self.body: bytes | bytearray = b""
        self.error: Exception | None = None
        self.place: asyncio.Task[None] | None = None
        self.whole: asyncio.Event | None = None
        self._pool = pool
        self._address = ""
        self._request = b""
        self._over: Callable[[PageResponse], None] | None = over
        self._large = large
        self._is_large = False
        self._call: EngineConnection | None = None

    @property
    def size(self) -> int:
        """Bytes of the page that were read."""
        return len(self.body)

    def send(self, address: str, request: bytes) -> None:
        """Sends the request. Args: address: of the engine, IP:PORT."""
        self._address = address
        self._request = request
        self._send(fresh=False)

    def _send(self, *, fresh: bool) -> None:
        self._call = call = self._pool.call(self._address, self, fresh=fresh)
        call.write(self._request)
        call.sent = True

    def resume(self) -> None:
        """Reads the rest of a large page."""
        if self._call is not None:
            self._call.resume()

    def cancel(self) -> None:
        """Ends the response, if it has not ended, with its connection: the rest is not read."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        self._end()

    def fail(self, error: Exception) -> None:
        """Ends the response with an error, if it has not ended."""
        if self._over is not None:
            self.error = error
            self.cancel()

    def give_way(self) -> None:
        """Ends the response: others wait for the place of its page."""
        self.fail(PageError(f"{self.size} bytes came before it was another's turn"))

    def _end(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over(self)

    # Called by the connection.

    def head(self, status: int, headers: Headers) -> None:
        encoding, length = find(headers, b"content-encoding"), int(find(headers, b"content-length") or 0)
        if status != 200:
            self.fail(PageError(f"HTTP {status}"))
        elif encoding is not None and encoding.lower() != b"identity":
            self.fail(PageError(f"Content-Encoding {encoding.decode('latin-1')[:40]!r} was not asked for"))
        elif length > MAX_BODY:
            self.fail(PageError(f"{length} bytes, more than {MAX_BODY}"))

    def data(self, data: bytes) -> None:
        if not self.body:
            self.body = data
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += data
        if self.size > MAX_BODY:
            self.fail(PageError(f"more than {MAX_BODY} bytes"))
        elif self.size > SMALL_PAGE and not self._is_large and self._call is not None:
            self._is_large = True
            self._call.pause()
            self._large(self)

    def ended(self) -> None:
        self._call = None
        self.body = bytes(self.body)
        self._end()

    def lost(self, loss: Loss) -> None:
        call, self._call = self._call, None
        if loss is Loss.STALE:
            self._send(fresh=True)
        else:
            self.fail(LostError(loss, "" if call is None else call.why))

    def engine_writable(self, *, now: bool) -> None:
        pass

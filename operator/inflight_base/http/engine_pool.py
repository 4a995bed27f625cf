"""Connections to engines: each carries one request at a time, and is reused for the next one to its engine.

An engine may be hostile. llhttp refuses heads against RFC 9112: control characters in values, line folding, two
lengths, a length beside a transfer coding, data after `connection: close`. The bounds on sizes are here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import defaultdict
from enum import Enum
from typing import Protocol, cast

import httptools

from inflight_base.http.heads import Headers

_log = logging.getLogger(__name__)

IDLE_S = 60.0
"""Seconds for which an idle connection is kept: engines close theirs after 120 s, which could abort a request in
transit."""

MAX_IDLE_OF_ONE = 128
"""Most idle connections to one engine."""

MAX_HEAD_BYTES = 64 * 2**10
"""Most bytes of a head. Also of all else that is not body in a row: heads of 1xx, extensions of chunks, trailers."""

MAX_FIELDS = 100
"""Most header fields of a response."""

MAX_INTERIM = 10
"""Most 1xx responses before a response."""

REST_WITHIN_S = 1.0
"""Seconds for which the end of a response is awaited after all that matters of it."""


_PROBE_S = 15
"""Seconds between the kernel's probes of a silent connection. After three without a response it is lost."""


class Loss(Enum):
    """How a call failed."""

    REFUSED = "refused"
    """There was no connection: refused, unreachable or not accepted in time. No engine has begun the request."""
    STALE = "stale"
    """A connection that had been idle was closed before a byte of the response."""
    BROKEN = "broken"
    """The connection broke after the request was written."""
    GARBLED = "garbled"
    """The response is no HTTP/1.1, or passes a bound."""


class ResponseReader(Protocol):
    """Receiver of one response. Nothing is called after `ended` or `lost`, or after cancellation of the call."""

    def head(self, status: int, headers: Headers) -> None: ...

    def data(self, data: bytes) -> None: ...

    def ended(self) -> None: ...

    def lost(self, loss: Loss) -> None: ...

    def engine_writable(self, *, now: bool) -> None:
        """Pause or resume writing of the request's body."""


class EnginePool:
    """Connections by the engine's address, IP:PORT.

    Args:
        connect_s: seconds in which an engine must accept a connection; None: the owner of a call cancels it.
        max_idle: most idle connections. The one that was idle for the longest time is closed for another.
        warn: responses that cannot be read are logged.
    """

    def __init__(self, *, connect_s: float | None = 1.0, max_idle: float = 1024, warn: bool = True) -> None:
        self.warn = warn
        self._connect_s = connect_s
        self._max_idle = max_idle
        self._idle: defaultdict[str, list[EngineConnection]] = defaultdict(list)
        self._idle_until: dict[EngineConnection, float] = {}
        """Seconds of the loop's clock; the connection that was idle for the longest time comes first."""
        self._in_flight: dict[str, int] = {}
        self._connecting: dict[EngineConnection, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def in_flight(self, address: str) -> int:
        """Returns the requests at an engine whose responses have not ended."""
        return self._in_flight.get(address, 0)

    def call(self, address: str, reader: ResponseReader, *, fresh: bool = False) -> EngineConnection:
        """Returns a connection for one request, which may be written at once. Args: fresh: a new connection."""
        idle = None if fresh else self._idle.get(address)
        if idle:
            connection = idle[-1]
            self._take(connection)
        else:
            connection = EngineConnection(self, address)
            self._connecting[connection] = asyncio.get_running_loop().create_task(self._connect(connection))
        connection.begin(reader)
        return connection

    async def _connect(self, connection: EngineConnection) -> None:
        host, _, port = connection.address.rpartition(":")
        why = ""
        try:
            async with asyncio.timeout(self._connect_s):
                # Transports of both event loops set TCP_NODELAY.
                await asyncio.get_running_loop().create_connection(lambda: connection, host.strip("[]"), int(port))
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            _log.info("no connection to the engine at %s: %r", connection.address, error)
            why = (isinstance(error, OSError) and error.strerror) or str(error) or "no answer"
        finally:
            self._connecting.pop(connection, None)
        if why:
            connection.end_lost(Loss.REFUSED, f"cannot connect to {connection.address}: {why}")

    def began(self, address: str) -> None:
        self._in_flight[address] = self._in_flight.get(address, 0) + 1

    def over(self, address: str) -> None:
        left = self._in_flight.pop(address) - 1
        if left:
            self._in_flight[address] = left

    def give_back(self, connection: EngineConnection) -> bool:
        """Keeps an idle connection for later requests; returns False if there are enough to its engine."""
        address = connection.address
        if len(self._idle.get(address, ())) >= MAX_IDLE_OF_ONE:
            return False
        if len(self._idle_until) >= self._max_idle:
            next(iter(self._idle_until)).close()
        # Only now: the closed one may have been the last one to this engine.
        self._idle[address].append(connection)
        now = asyncio.get_running_loop().time()
        self._idle_until[connection] = now + IDLE_S
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)
        return True

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for connection, until in [*self._idle_until.items()]:
            if until > loop.time():
                self._timer = loop.call_at(until, self._close_idle)
                return
            connection.close()

    def remove(self, connection: EngineConnection) -> None:
        """Removes a connection that is closed or given up."""
        task = self._connecting.pop(connection, None)
        if task is not None:
            task.cancel()
        self._take(connection)

    def _take(self, connection: EngineConnection) -> None:
        """Removes a connection that is idle no more. The task that made it may not have ended: to cancel it would close
        the connection."""
        if self._idle_until.pop(connection, None) is not None:
            idle = self._idle[connection.address]
            idle.remove(connection)
            if not idle:
                del self._idle[connection.address]

    def close(self) -> None:
        """Close idle connections and end attempts to connect."""
        for connection in [*self._idle_until]:
            connection.close()
        for task in [*self._connecting.values()]:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_READ = bytearray(MAX_HEAD_BYTES)
_VIEW = memoryview(_READ)
"""Data of one read. All connections share it: it is parsed before the next read."""


class EngineConnection(asyncio.BufferedProtocol):
    """A connection. The owner of its call writes to it and may cancel it.

    An engine that sends as fast as it can gets one read in each turn of the event loop, like all others.

    Attributes:
        sent: the whole request is written, so that another one may follow its response.
        why: how the call failed, for people.
    """

    # A scraper keeps one for each pod.
    __slots__ = (
        *("address", "sent", "why", "_pool", "_transport", "_closed", "_reader", "_unsent", "_parser", "_headers"),
        *("_status", "_head_bytes", "_interim", "_not_body", "_used", "_answered", "_no_body", "_in_body"),
        *("_unbounded", "_body", "_more", "_paused", "_complete", "_timer"),
    )

    def __init__(self, pool: EnginePool, address: str) -> None:
        self.address = address
        self.sent = False
        self.why = ""
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._reader: ResponseReader | None = None
        # Written before the connection is established.
        self._unsent: list[bytes] = []
        self._parser = _NO_PARSER
        self._headers = _NONE
        self._status = self._head_bytes = self._interim = self._not_body = 0
        self._used = self._answered = self._no_body = self._in_body = self._unbounded = False
        # Parts of the body in one read.
        self._body = b""
        self._more: list[bytes] = []
        self._paused = False
        # The response is complete; whether another request may follow.
        self._complete: bool | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Called by the owner of the call.

    def begin(self, reader: ResponseReader) -> None:
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._pool.began(self.address)
        self.sent = self._answered = self._no_body = self._in_body = self._unbounded = False
        self._interim = self._not_body = 0
        self._complete = None
        self._body = b""
        self._more.clear()

    def write(self, data: bytes, *, no_body: bool = False) -> None:
        """Write a part of the request. Args: no_body: it is the head of a HEAD request, whose answer has no body."""
        self._no_body |= no_body
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    def read_rest(self, *, awaited: bool = False) -> None:
        """Discard the rest of the response, and keep the connection: the call is complete. Args: awaited: the rest is
        not at hand."""
        if self._reader is not None:
            self._reader = _REST
            if awaited:
                self._await_rest()

    def cancel(self) -> None:
        """End the call, if it has not ended, by closing the connection: the engine then stops its work."""
        if self._reader is not None:
            self.close()

    def close(self) -> None:
        self._release()
        self._pool.remove(self)
        self._closed = True
        self._unsent.clear()
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more for now."""
        self._paused = True
        self._pause_reading()

    def resume(self) -> None:
        self._paused = False
        self._resume_reading()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._transport = transport
        if self._closed:
            transport.abort()
            return
        _detect_dead_peer(transport.get_extra_info("socket"))
        transport.writelines(self._unsent)
        self._unsent.clear()

    def get_buffer(self, sizehint: int) -> bytearray:
        return _READ

    def buffer_updated(self, nbytes: int) -> None:
        if self._reader is None:  # an engine has nothing to say without a request
            self.close()
            return
        self._not_body += nbytes
        try:
            self._parser.feed_data(_VIEW[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if isinstance(error, httptools.HttpParserCallbackError):
                _log.exception("a response is given up")
            if self._complete is None:
                self._garbled(str(error))
            self._complete = False
        body = self._body
        if body:
            self._body = b""
            if self._more:
                body = b"".join((body, *self._more))
                self._more.clear()
            if self._reader is not None:
                self._reader.data(body)
        if self._complete is not None:
            # Not before all data at hand is parsed: none may be taken for the response to the next request.
            self._end(reusable=self._complete)
        elif self._not_body > MAX_HEAD_BYTES:
            self._garbled(f"more than {MAX_HEAD_BYTES} bytes are no part of its body")
        else:
            if self._reader is _REST and self._timer is None:
                self._await_rest()
            if nbytes == len(_READ) and not self._paused:
                self._pause_reading()
                asyncio.get_running_loop().call_soon(self._next_turn)

    def _await_rest(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(REST_WITHIN_S, self.close)

    def _next_turn(self) -> None:
        if not self._paused:
            self._resume_reading()

    def eof_received(self) -> None:
        if self._unbounded:
            self._end(reusable=False)

    def connection_lost(self, exc: Exception | None) -> None:
        loss = Loss.STALE if self._used and not self._answered else Loss.BROKEN
        self.end_lost(loss, "the connection was closed before the end of the response")

    def end_lost(self, loss: Loss, why: str) -> None:
        """Closes the connection, and tells the reader of a call that has not ended."""
        reader, self.why = self._reader, why
        self.close()
        if reader is not None:
            reader.lost(loss)

    def _garbled(self, why: str) -> None:
        if self._reader is not None and self._pool.warn:
            _log.warning("the response of the engine at %s cannot be read: %s", self.address, why)
        self.end_lost(Loss.GARBLED, f"the response cannot be read as HTTP/1.1: {why}")

    def pause_writing(self) -> None:
        if self._reader is not None:
            self._reader.engine_writable(now=False)

    def resume_writing(self) -> None:
        if self._reader is not None:
            self._reader.engine_writable(now=True)

    # Called by the parser, also after this connection is closed.

    def on_message_begin(self) -> None:
        if self._complete is not None:  # a second response: no request is to get it
            self._complete = False
        self._headers = []
        self._head_bytes = 0
        self._answered = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reader is None or self._in_body or self._complete is not None:  # a trailer, or another response
            return
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD_BYTES or len(self._headers) >= MAX_FIELDS:
            self._garbled(f"its head has more than {MAX_HEAD_BYTES} bytes or {MAX_FIELDS} fields")
        else:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._reader is None or self._complete is not None:
            return
        self._status = status = self._parser.get_status_code()
        if 100 < status < 200 or status == 100:
            self._interim += 1
            if self._interim > MAX_INTERIM:
                self._garbled(f"more than {MAX_INTERIM} responses of 1xx")
            return
        lengths = [(name, value) for name, value in self._headers if name in _LENGTHS]
        coded = [value for name, value in lengths if name == b"transfer-encoding" and value.lower() != b"chunked"]
        if not 200 <= status < 600 or coded:
            self._garbled(f"status {status}, transfer codings {coded}")
            return
        self._in_body = True
        self._unbounded = not lengths and not self._no_body and status not in (204, 304)
        self._not_body = 0
        self._reader.head(status, self._headers)
        if self._no_body and self._complete is None:
            self._complete = False

    def on_body(self, data: bytes) -> None:
        self._not_body = 0
        if self._complete is None:
            if self._body:
                self._more.append(data)
            else:
                self._body = data

    def on_message_complete(self) -> None:
        if self._status >= 200 and self._complete is None:
            self._complete = self._parser.should_keep_alive()

    # Ends of calls.

    def _release(self) -> None:
        """Ends the call; the reader hears nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reader is not None:
            self._reader = None
            self._pool.over(self.address)

    def _end(self, *, reusable: bool) -> None:
        """Ends the call, whose response is complete."""
        reader = self._reader
        self._release()
        self._used = True
        self._unbounded = self._in_body = False
        self._headers, self._parser = _NONE, _NO_PARSER
        # Before the reader resumes: it may be paused for a client that has read everything by the next request.
        self.resume()
        if self._closed or not (reusable and self.sent) or not self._pool.give_back(self):
            self.close()
        if reader is not None:
            reader.ended()


def _detect_dead_peer(connection: socket.socket) -> None:
    """Ends a connection whose node is gone, also while a plain response may be silent for as long as it takes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


_LENGTHS = (b"content-length", b"transfer-encoding")

_NONE: Headers = []
"""Headers of an idle connection: never added to, each message begins with its own."""

_NO_PARSER = httptools.HttpResponseParser(object())
"""Parser of an idle connection, which reads nothing: one of its own takes 0.9 kB."""


class _Rest:
    """Reader that discards the rest of a response."""

    def head(self, status: int, headers: Headers) -> None:
        pass

    def data(self, data: bytes) -> None:
        pass

    def ended(self) -> None:
        pass

    def lost(self, loss: Loss) -> None:
        pass

    def engine_writable(self, *, now: bool) -> None:
        pass


_REST = _Rest()

"""Connections to Envoy's inner listener: each carries one request at a time, and is reused for the next."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Protocol, cast

import httptools

from inflight_gateway.relay.heads import Headers

_log = logging.getLogger(__name__)

MAX_IDLE = 256
"""Most idle connections kept for later requests."""

_CONNECT_TRIES = 100
_CONNECT_PAUSE_S = 0.02
"""A UNIX socket whose queue of new connections is full refuses at once; Envoy empties it within milliseconds."""


class ResponseReader(Protocol):
    """Receiver of one response. Nothing is called after `ended` or `lost`, or after cancellation of the call."""

    def head(self, status: int, headers: Headers) -> None: ...

    def data(self, data: bytes) -> None: ...

    def ended(self) -> None: ...

    def lost(self, *, stale: bool) -> None:
        """The connection was lost. `stale`: an idle connection was closed when reused: retry once."""
        ...

    def inner_writable(self, *, now: bool) -> None:
        """Pause or resume writing of the request's body."""
        ...


class InnerPool:
    """Idle connections. Args: path: socket of the inner listener."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: list[InnerConnection] = []
        self._connecting: set[asyncio.Task[None]] = set()

    def call(self, reader: ResponseReader) -> InnerConnection:
        """Returns a connection for one request, which may be written at once."""
        connection = self._idle.pop() if self._idle else self._connect()
        connection.begin(reader)
        return connection

    def _connect(self) -> InnerConnection:
        connection = InnerConnection(self)
        task = asyncio.get_running_loop().create_task(self._open(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return connection

    async def _open(self, connection: InnerConnection) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_CONNECT_TRIES):
            try:
                await loop.create_unix_connection(lambda: connection, self._path)
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    _log.warning("cannot connect to the inner listener: %s", error)
                    break
            else:
                return
            await asyncio.sleep(_CONNECT_PAUSE_S)
        connection.connection_lost(None)

    def give_back(self, connection: InnerConnection) -> bool:
        """Keeps an idle connection for later requests; returns False if there are enough."""
        if len(self._idle) >= MAX_IDLE:
            return False
        self._idle.append(connection)
        return True

    def remove(self, connection: InnerConnection) -> None:
        """Removes a connection that was closed, possibly while idle."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        for connection in [*self._idle]:
            connection.close()
        self._idle.clear()


class InnerConnection(asyncio.Protocol):
    """A connection. The owner of its call writes to it and may cancel it.

    Attributes: sent: the whole request is written, so that another one may follow its response.
    """

    def __init__(self, pool: InnerPool) -> None:
        self.sent = False
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._reader: ResponseReader | None = None
        # Written before the connection is established.
        self._unsent: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._status = 0
        self._used = self._answered = self._no_body = False

    # Called by the owner of the call.

    def begin(self, reader: ResponseReader) -> None:
        self._reader = reader
        self.sent = self._answered = self._no_body = False

    def write(self, data: bytes, *, no_body: bool = False) -> None:
        """Write a part of the request. Args: no_body: it is the head of a HEAD request, whose answer has no body."""
        self._no_body |= no_body
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    def read_rest(self) -> None:
        """Discard the rest of the response and keep the connection: the call is complete."""
        if self._reader is not None:
            self._reader = _REST

    def cancel(self) -> None:
        """End the call, if it has not ended, by closing the connection: Envoy and the engine then stop their work."""
        if self._reader is not None:
            self.close()

    def close(self) -> None:
        self._reader = None
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._transport = transport
        if self._closed:
            transport.abort()
            return
        transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._reader is not None:
                _log.warning("the inner listener's response cannot be read: %s", error)
            self._end_lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.remove(self)
        self._end_lost()

    def _end_lost(self) -> None:
        reader = self._reader
        stale = self._used and not self._answered
        self.close()
        if reader is not None:
            reader.lost(stale=stale)

    def pause_writing(self) -> None:
        if self._reader is not None:
            self._reader.inner_writable(now=False)

    def resume_writing(self) -> None:
        if self._reader is not None:
            self._reader.inner_writable(now=True)

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._headers = []
        self._answered = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status >= 200 and self._reader is not None:
            self._reader.head(self._status, self._headers)
            if self._no_body:
                self._end(reusable=False)

    def on_body(self, data: bytes) -> None:
        if self._reader is not None:
            self._reader.data(data)

    def on_message_complete(self) -> None:
        if self._status >= 200:
            self._end(reusable=self._parser.should_keep_alive())

    def _end(self, *, reusable: bool) -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        self._used = True
        # Before the reader resumes: it may be paused for a client that has read everything by the next request.
        self.resume()
        if not (reusable and self.sent) or not self._pool.give_back(self):
            self.close()
        reader.ended()


class _Rest:
    """Reader that discards the rest of a response."""

    def head(self, status: int, headers: Headers) -> None:
        pass

    def data(self, data: bytes) -> None:
        pass

    def ended(self) -> None:
        pass

    def lost(self, *, stale: bool) -> None:
        pass

    def inner_writable(self, *, now: bool) -> None:
        pass


_REST = _Rest()

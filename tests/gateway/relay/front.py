"""Stands in for Envoy in unit tests of the relay: HTTP/1.1 on one UNIX socket, HTTP/2 to the relay's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http.client import responses
from pathlib import Path
from socket import SOMAXCONN
from typing import Self

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from hyperframe.frame import GoAwayFrame

_OF_A_CONNECTION = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te"}
_NOT_PASSED_ON = _OF_A_CONNECTION | {b"host", b"expect"}
_WINDOW_BYTES = 2**30
"""Window of a connection. Streams whose clients do not read keep up to 64 KiB of it each."""
_LINGER_S = 2.0
"""Seconds for which the rest of a request is read after an early answer: closing with unread data would reset."""


class _H2Connection(H2Connection):
    """Streams go on after a GOAWAY: h2's own state machine ends with it."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list, list]:
        event = events.ConnectionTerminated()
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class _Stream:
    """A request and its answer. Attributes: sent: the request is complete. events: of h2, those of the answer; None:
    there will be no more, as the client left or the connection is lost."""

    def __init__(self, relay: _Relay, fields: list[tuple[bytes, bytes]], *, ended: bool) -> None:
        self._relay, self._h2 = relay, relay.h2
        self._id = self._h2.get_next_available_stream_id()
        self.sent, self.open = ended, True
        self.window = asyncio.Event()
        self.events: asyncio.Queue[object] = asyncio.Queue()
        relay.streams[self._id] = self
        self._h2.send_headers(self._id, fields, end_stream=ended)
        relay.flush()

    async def send(self, data: bytes) -> None:
        """Waits for the relay's windows. Raises: ConnectionResetError."""
        while data:
            if not self.open:
                raise ConnectionResetError
            size = min(len(data), self._h2.local_flow_control_window(self._id), self._h2.max_outbound_frame_size)
            if size > 0:
                self._h2.send_data(self._id, data[:size])
                self._relay.flush()
                data = data[size:]
            else:
                self.window.clear()
                await self.window.wait()

    def end(self) -> None:
        if self.open:
            self._h2.end_stream(self._id)
            self._relay.flush()
        self.sent = True

    def acknowledge(self, size: int) -> None:
        self._h2.acknowledge_received_data(size, self._id)
        self._relay.flush()

    def happened(self, event: object) -> None:
        if event is None or isinstance(event, events.StreamReset):
            self.open = False
            self.window.set()
        elif isinstance(event, events.StreamEnded):
            self.open = not self.sent
        self.events.put_nowait(event)

    def leave(self) -> None:
        """Is done with it; the relay is told unless both sides have ended."""
        if self.open and not self._relay.lost:
            self._h2.reset_stream(self._id, ErrorCodes.INTERNAL_ERROR)  # Envoy's code, also of clients that leave
        self._relay.forget(self._id)


class _Relay(asyncio.Protocol):
    """A connection to the relay. Attributes: usable: for new requests."""

    def __init__(self) -> None:
        self.h2 = _H2Connection(H2Configuration(header_encoding=None, validate_outbound_headers=False))
        self.streams: dict[int, _Stream] = {}
        self.usable, self.lost = True, False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_WINDOW_BYTES)
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            stream = self.streams.get(getattr(event, "stream_id", 0))
            if isinstance(event, events.ConnectionTerminated):
                self.usable = False
                for number, each in self.streams.items():
                    if number > event.last_stream_id:
                        each.happened(None)
            elif isinstance(event, (events.WindowUpdated, events.RemoteSettingsChanged)):
                for each in self.streams.values():
                    each.window.set()
            elif stream is not None:
                stream.happened(event)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable, self.lost = False, True
        for stream in self.streams.values():
            stream.happened(None)

    def forget(self, number: int) -> None:
        del self.streams[number]
        self.flush()
        if not self.usable and not self.streams:
            self.transport.close()

    def flush(self) -> None:
        if (data := self.h2.data_to_send()) and not self.transport.is_closing():
            self.transport.write(data)


class Front:
    """Create it in the event loop. Args: relay: its socket."""

    def __init__(self, relay: Path) -> None:
        self._path, self._connecting = relay, asyncio.Lock()
        self._relays: list[_Relay] = []
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, socket: Path) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, str(socket), backlog=SOMAXCONN)
        return self

    async def stop(self) -> None:
        self._server.close()
        for end in [*self._relays, *self._serving.values()]:
            end.transport.abort()
        await asyncio.gather(*self._serving)

    async def _relay(self) -> _Relay:
        async with self._connecting:
            self._relays = [relay for relay in self._relays if not relay.lost]
            if not self._relays or not self._relays[-1].usable:
                _, relay = await asyncio.get_running_loop().create_unix_connection(_Relay, str(self._path))
                self._relays.append(relay)
            return self._relays[-1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving[task] = writer
        # What is drained is the kernel's: the rest counts for the relay.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            while head:
                head = await self._exchange(head, reader, writer)
        except (EOFError, OSError):
            pass
        finally:
            del self._serving[task]
            writer.transport.abort()

    async def _exchange(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Passes on a request and its answer. Returns the head of the next request, empty at the connection's end."""
        first, *lines = head[:-4].split(b"\r\n")
        method, target, _ = first.split(b" ", 2)
        fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        named = dict(fields)
        length = None if b"transfer-encoding" in named else int(named.get(b"content-length", 0))
        if b"expect" in named:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        sent = [(b":method", method), (b":scheme", b"http"), (b":authority", named[b"host"]), (b":path", target)]
        sent += [(name, value) for name, value in fields if name not in _NOT_PASSED_ON]
        stream = _Stream(await self._relay(), sent, ended=length == 0)
        uploading = asyncio.create_task(_upload(reader, stream, length))
        try:
            last = await _answer(stream, writer, method, last=named.get(b"connection") == b"close")
        except BaseException:
            uploading.cancel()
            raise
        finally:
            stream.leave()
        if not last:
            return await uploading
        uploading.cancel()
        await asyncio.wait([uploading])
        writer.write_eof()
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(2**16):
                pass
        return b""


async def _upload(reader: asyncio.StreamReader, stream: _Stream, length: int | None) -> bytes:
    """Sends a body. Returns the head of the next request; empty if the client left."""
    try:
        async for data in _body(reader, length):
            await stream.send(data)
        if length != 0:
            stream.end()
        return await reader.readuntil(b"\r\n\r\n")
    except (EOFError, ConnectionError):
        stream.events.put_nowait(None)
        return b""


async def _body(reader: asyncio.StreamReader, length: int | None) -> AsyncIterator[bytes]:
    """Yields a body as it arrives. Args: length: its bytes; None: chunked. Raises: EOFError."""
    if length is None:
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            async for data in _body(reader, size):
                yield data
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
        return
    while length:
        data = await reader.read(min(length, 2**16))
        if not data:
            raise EOFError
        length -= len(data)
        yield data


async def _answer(stream: _Stream, writer: asyncio.StreamWriter, method: bytes, *, last: bool) -> bool:
    """Passes on the answer as it arrives and is read by the client. Returns whether the connection ends with it.
    Raises: ConnectionResetError: it is broken off, or the client left."""
    chunked = False
    while True:
        match await stream.events.get():
            case events.ResponseReceived(headers=headers, stream_ended=ended):
                (_, status), *fields = headers
                if method != b"HEAD" and status not in (b"204", b"304") and b"content-length" not in dict(fields):
                    chunked = ended is None
                    fields.append((b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"0"))
                # An HTTP/1.1 connection whose request is incomplete cannot be used again.
                last = last or not stream.sent
                if last:
                    fields.append((b"connection", b"close"))
                lines = [b"HTTP/1.1 %b %b" % (status, responses.get(int(status), "").encode())]
                lines += [b"%b: %b" % field for field in fields]
                writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
            case events.DataReceived(data=data, flow_controlled_length=size):
                if data:
                    writer.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
                    await writer.drain()
                stream.acknowledge(size)
            case events.StreamEnded():
                writer.write(b"0\r\n\r\n" if chunked else b"")
                await writer.drain()
                return last
            case None | events.StreamReset():
                raise ConnectionResetError

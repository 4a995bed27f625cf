"""The connection to the current engine process: bytes to messages and back; replaced when the process dies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from inflight_engine.channel import FrameDecoder, encode
from inflight_engine.messages import FromEngine, ToEngine


class EngineClient(asyncio.Protocol):
    """A connection to an engine process.

    Args:
        on_message: called for each message, in order, in the event loop.
        on_lost: called once when the engine process has exited, with the reason if known.
    """

    def __init__(self, on_message: Callable[[FromEngine], None], on_lost: Callable[[str | None], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = FrameDecoder.for_api()
        self._transport: asyncio.WriteTransport | None = None

    async def connect(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)

    def write(self, frames: Sequence[bytes]) -> None:
        """Queue whole frames; after the engine has exited they are dropped, and `on_lost` reports it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(frames)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports have the methods, not the base class.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except msgspec.DecodeError as error:
            self._on_lost(f"the engine process sent what is not a message ({error}); are both of one version?")
            self.close()
            return
        for message in messages:
            self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(None)


class EngineLink:
    """At most one connection at a time; messages of earlier ones are ignored.

    Args:
        on_message: called for each message, in order, in the event loop.
        on_lost: called once for a connection that ended, with the reason if known; not after `cut`.

    Attributes:
        open: the engine accepts messages. Before that, and after loss of the connection, they are dropped.
    """

    def __init__(self, on_message: Callable[[FromEngine], None], on_lost: Callable[[str | None], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._client: EngineClient | None = None
        self.open = False

    async def connect(self, sock: socket.socket) -> None:
        """Take over a connected socket; the previous one was lost or cut."""

        def message(message: FromEngine) -> None:
            if client is self._client:
                self._on_message(message)

        def lost(why: str | None) -> None:
            if client is self._client:
                self.cut()
                self._on_lost(why)

        client = self._client = EngineClient(message, lost)
        await client.connect(sock)

    def send(self, *messages: ToEngine) -> None:
        """Queue messages, all or (when one cannot be encoded, also to an engine that is gone) none."""
        frames = [encode(message) for message in messages]
        if self.open and self._client is not None:
            self._client.write(frames)

    def cut(self) -> None:
        """Close the connection."""
        self.open = False
        client, self._client = self._client, None
        if client is not None:
            client.close()

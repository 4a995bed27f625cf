"""Frames messages on the socket between the API process and the engine process."""

from __future__ import annotations

import os
import select
import socket
from typing import Generic, TypeVar

import msgspec

from inflight_engine.messages import FromEngine, ToEngine

_HEADER_BYTES = 4
_READ_BYTES = 1 << 16

Message = TypeVar("Message")


class ChannelClosedError(ConnectionError):
    """The other process ended or closed the socket."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: ToEngine | FromEngine) -> bytes:
    """Return a message as a frame: 4-byte little-endian length, then msgpack."""
    body = _encoder.encode(message)
    return len(body).to_bytes(_HEADER_BYTES, "little") + body


class FrameDecoder(Generic[Message]):
    """Cuts a byte stream into messages, whatever pieces it arrives in."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    @classmethod
    def for_engine(cls) -> FrameDecoder[ToEngine]:
        """Decodes what the engine process receives."""
        return FrameDecoder[ToEngine](msgspec.msgpack.Decoder(ToEngine))

    @classmethod
    def for_api(cls) -> FrameDecoder[FromEngine]:
        """Decodes what the API process receives."""
        return FrameDecoder[FromEngine](msgspec.msgpack.Decoder(FromEngine))

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes, in order.

        Raises:
            msgspec.DecodeError: a frame is not a message; the two processes are of different versions.
        """
        self._buffer += data
        messages = []
        start = 0
        while len(self._buffer) - start >= _HEADER_BYTES:
            length = int.from_bytes(self._buffer[start : start + _HEADER_BYTES], "little")
            end = start + _HEADER_BYTES + length
            if len(self._buffer) < end:
                break
            messages.append(self._decoder.decode(self._buffer[start + _HEADER_BYTES : end]))
            start = end
        del self._buffer[:start]
        return messages


class EngineChannel:
    """The engine process's end: blocking sends, receives that wait only when asked to."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = FrameDecoder.for_engine()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._woken = os.eventfd(0, os.EFD_NONBLOCK)
        self._poll.register(self._woken, select.POLLIN)

    def send(self, message: FromEngine) -> None:
        try:
            self._socket.sendall(encode(message))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError("the API process is gone") from error

    def wake(self) -> None:
        """End the wait of `receive`, or of its next call; from any thread."""
        os.eventfd_write(self._woken, 1)

    def quiet(self, seconds: float) -> bool:
        """Nothing arrives, and `wake` is not called, for so long."""
        return not self._poll.poll(seconds * 1000)

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """Receive all messages that are there; with `wait`, block until there is at least one, or `wake` is called.

        Raises:
            ChannelClosedError: the API process is gone.
        """
        messages: list[ToEngine] = []
        while self._readable(wait=wait and not messages):
            try:
                data = self._socket.recv(_READ_BYTES)
            except ConnectionResetError:
                data = b""
            if not data:
                raise ChannelClosedError("the API process is gone")
            messages += self._decoder.feed(data)
        return messages

    def _readable(self, *, wait: bool) -> bool:
        readable = False
        for descriptor, _ in self._poll.poll(None if wait else 0):
            if descriptor == self._woken:
                os.eventfd_read(self._woken)
            else:
                readable = True
        return readable

"""Frames of HTTP/2 (RFC 9113) and messages of gRPC (PROTOCOL-HTTP2.md of its documentation), as bytes."""

from __future__ import annotations

from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
INITIAL_WINDOW_SIZE = 4
INTERNAL_ERROR = 2

FRAME_HEAD = Struct(">BHBBI")
"""Length (8 and 16 bits), type, flags, stream."""
FRAME_HEAD_BYTES = 9
FRAME_BYTES = 16_384
"""Maximum payload in both directions: the value that every peer permits."""

NUMBER = Struct(">I")
SETTING = Struct(">HI")

MESSAGE_HEAD = Struct(">BI")
"""Of a gRPC message: whether it is compressed, length."""
MESSAGE_HEAD_BYTES = 5

DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return FRAME_HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def _field(name: bytes, value: bytes) -> bytes:
    """Of a header block: a literal that is not indexed (RFC 7541, 6.2.2)."""
    return b"\x00%c%s%c%s" % (len(name), name, len(value), value)


_STATUS_200 = b"\x88"
"""Entry 8 of HPACK's static table."""
RESPONSE_HEAD = _STATUS_200 + _field(b"content-type", b"application/grpc")
TRAILERS = _field(b"grpc-status", b"0")
GREETING = (
    # All that Envoy sends is read at once: bodies are complete there, and are in this process' memory only briefly.
    frame(SETTINGS, 0, 0, SETTING.pack(INITIAL_WINDOW_SIZE, MAX_WINDOW))
    + frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(MAX_WINDOW - DEFAULT_WINDOW))
)


def framed(message: bytes) -> bytes:
    """A gRPC message with its length."""
    return MESSAGE_HEAD.pack(0, len(message)) + message

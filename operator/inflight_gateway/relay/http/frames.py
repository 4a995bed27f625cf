"""Frames of HTTP/2 (RFC 9113), as the relay reads and writes them."""

from __future__ import annotations

from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

HEAD = Struct("!HBBBI")
"""Head of a frame: the upper 16 and the lower 8 bits of its length, type, flags, stream."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = range(4)
FRAME_SIZE_ERROR, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 9, 11

HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 3, 4

DEFAULT_WINDOW = 2**16 - 1
LARGEST_WINDOW = LAST_STREAM = 2**31 - 1

MAX_FRAME_BYTES = 2**14
"""Longest payload, as neither side permits more."""

_PAIR = Struct("!HI")


class Violation(Exception):
    """The other side broke the protocol. Attributes: code: of the error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 8, size & 255, kind, flags, stream) + payload


def number(value: int) -> bytes:
    """Returns the payload of a frame that is one number."""
    return value.to_bytes(4, "big")


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_PAIR.pack(*pair) for pair in pairs))


def settings_of(payload: bytes) -> list[tuple[int, int]]:
    """Returns the settings in a frame.

    Raises:
        Violation: one is cut.
    """
    if len(payload) % _PAIR.size:
        raise Violation(FRAME_SIZE_ERROR, "settings that are cut")
    return [*_PAIR.iter_unpack(payload)]


def number_of(payload: bytes) -> int:
    """Returns the number that a frame is, of 31 bits.

    Raises:
        Violation: it has another size.
    """
    if len(payload) != 4:
        raise Violation(FRAME_SIZE_ERROR, f"a number of {len(payload)} bytes")
    return int.from_bytes(payload, "big") & LARGEST_WINDOW


def content(flags: int, payload: bytes) -> bytes:
    """Returns what a frame of data or headers has beside padding and priority.

    Raises:
        Violation: these are longer than the frame.
    """
    if flags & (PADDED | WITH_PRIORITY):
        padding = payload[0] if flags & PADDED and payload else 0
        begin = bool(flags & PADDED) + 5 * bool(flags & WITH_PRIORITY)
        end = len(payload) - padding
        if begin > end:
            raise Violation(PROTOCOL_ERROR, "a frame shorter than its padding")
        return payload[begin:end]
    return payload

"""The part of HTTP/2 that hostile clients need: frames, header fields without compression, the status of an answer."""

from __future__ import annotations

from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4

_INDEXED_STATUS = {0x88: 200, 0x89: 204, 0x8A: 206, 0x8B: 304, 0x8C: 400, 0x8D: 404, 0x8E: 500}
"""RFC 7541, appendix A."""


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def fields(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Literal fields that are not indexed."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in pairs)


def _string(text: str) -> bytes:
    data = text.encode("latin-1")
    return _integer(len(data)) + data


def _integer(value: int) -> bytes:
    """Encodes an integer with a prefix of 7 bits."""
    if value < 127:
        return bytes((value,))
    out, value = [127], value - 127
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes((*out, value))


def answer(data: bytes) -> tuple[int, bytes] | None:
    """Status and body of the answer on stream 1; None: none, or not whole."""
    status, body, at = 0, b"", 0
    while at + 9 <= len(data):
        length, kind, flags = int.from_bytes(data[at : at + 3]), data[at + 3], data[at + 4]
        stream, payload = int.from_bytes(data[at + 5 : at + 9]), data[at + 9 : at + 9 + length]
        at += 9 + length
        if at > len(data) or stream != 1:
            continue
        if kind == HEADERS and not status:
            status = _status(payload)
        elif kind == DATA:
            body += payload
        if kind in (HEADERS, DATA) and flags & END_STREAM and status:
            return status, body
    return None


def ended(data: bytes) -> bool:
    """Returns whether the server gave up the connection or stream 1."""
    at = 0
    while at + 9 <= len(data):
        kind, stream = data[at + 3], int.from_bytes(data[at + 5 : at + 9])
        if kind == GOAWAY or (kind == RST_STREAM and stream == 1):
            return True
        at += 9 + int.from_bytes(data[at : at + 3])
    return False


def _status(block: bytes) -> int:
    """The first field of a block, with an empty dynamic table. Digits have 5 or 6 bits in Huffman's code."""
    while block and block[0] & 0xE0 == 0x20:  # a new size of the dynamic table
        block = block[1:]
    if block[0] in _INDEXED_STATUS:
        return _INDEXED_STATUS[block[0]]
    length, coded = block[1] & 0x7F, block[2:]
    if not block[1] & 0x80:
        return int(coded[:length])
    bits, number, at = "".join(f"{byte:08b}" for byte in coded[:length]), 0, 0
    for _ in range(3):
        five = int(bits[at : at + 5], 2)
        width = 5 if five < 3 else 6
        number = number * 10 + (five if width == 5 else int(bits[at : at + 6], 2) - 0b011001 + 3)
        at += width
    return number

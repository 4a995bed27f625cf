"""Heads of HTTP/1.1 messages as bytes. Names of headers are in lower case."""

from __future__ import annotations

from collections.abc import Sequence

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect")
)
"""Headers that are not forwarded: RFC 9110, 7.6.1, and `expect`, which Envoy answers."""


def end_to_end(headers: Headers) -> Headers:
    """Returns the headers without hop-by-hop headers."""
    dropped = HOP_BY_HOP
    connection = find(headers, b"connection")
    if connection is not None and connection.lower() not in (b"close", b"keep-alive"):
        dropped = HOP_BY_HOP | {name.strip().lower() for name in connection.split(b",")}
    return [header for header in headers if header[0] not in dropped]


def without(headers: Headers, *dropped: bytes) -> Headers:
    return [header for header in headers if header[0] not in dropped]


def find(headers: Headers, name: bytes) -> bytes | None:
    for each, value in headers:
        if each == name:
            return value
    return None


def retry_after_seconds(headers: Headers) -> float | None:
    """Returns the seconds in Retry-After; the parts of the gateway do not use its form with a date."""
    value = find(headers, b"retry-after")
    return float(value) if value is not None and value.isdigit() else None


def request_head(method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, b"".join([b"%b: %b\r\n" % header for header in headers]))


def chunk(data: bytes) -> bytes:
    """Returns `data`, which must not be empty, in chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"

"""Files of recorded decisions: a header and rounds in one zstd stream.

The header is a line of JSON. Each round is a line `NAMESPACE/NAME BYTES` and a message of so many bytes. Rounds of a
service are mostly equal to the round before, which compression removes: its window holds the last rounds of hundreds of
services.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zstandard

CHUNK = 64 * 1024
"""Bytes to read from a file at once; decompressed, they are some MB."""

_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(3, window_log=25)
"""Compression parameters: a window of 32 MiB, which is also the memory that compression takes."""


class RecordingFormatError(ValueError):
    """The file is damaged, or of another format; the message continues a sentence that names the file."""


def compressor() -> zstandard.ZstdCompressionObj:
    """Returns the compressor of a file."""
    return zstandard.ZstdCompressor(compression_params=_PARAMETERS).compressobj()


def packed(service: str, message: bytes) -> bytes:
    """Returns a round in the format of a file, before compression."""
    return b"%s %d\n%s" % (service.encode(), len(message), message)


def parts_of(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """The header with an empty name, then the service and the message of each round.

    Raises:
        EOFError: the file stops before its end; raised after the last whole part.
        RecordingFormatError: the file is damaged, or of another format.
    """
    stream, content, number = zstandard.ZstdDecompressor().decompressobj(), b"", 0
    for chunk in chunks:
        try:
            content += stream.decompress(chunk)
        except zstandard.ZstdError as error:
            if not number:
                raise RecordingFormatError("is no recording of inflight-operator: its first line is another") from error
            raise RecordingFormatError(f"is damaged after round {number - 1}: {error}") from error
        start = 0
        while end := content.find(b"\n", start) + 1:
            service, size = _line(content[start:end], number) if number else ("", 0)
            if end + size > len(content):
                break
            yield service, content[end : end + size] if number else content[:end]
            start, number = end + size, number + 1
        content = content[start:]
    if content or not stream.eof:
        raise EOFError


def _line(line: bytes, number: int) -> tuple[str, int]:
    """The service of a round, and the bytes of its message."""
    service, _, size = line.rstrip().rpartition(b" ")
    if not service or not size.isdigit():
        raise RecordingFormatError(f"cannot be understood in round {number}: {line[:80]!r} is no line of a round")
    return service.decode(errors="replace"), int(size)

"""Recordings of decisions: detection of the file type, and extraction of one service's rounds.

A recording of the operator is JSON lines, compressed with gzip: a header, then a line for each round. Rounds refer only
to earlier rounds of the same service in the same file, back to one that is written whole; so the lines of one service
are a recording, and those of several files with equal headers are one too. A file may be cut short.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inflight_kubectl.output import Problem

OPERATOR_HEADER = "inflight-operator decisions"

_GZIP = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20

Kind = Literal["operator", "engine"]


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a recording of the operator.

    Attributes:
        version: of the operator that wrote it.
        identity: the same program can read recordings with equal identity.
        text: the line, with its end.
    """

    version: str
    identity: tuple[str, str]
    text: bytes

    @classmethod
    def of(cls, line: bytes) -> Header | None:
        """None if the line is no such header."""
        try:
            content = json.loads(line)
        except ValueError:
            return None
        if not isinstance(content, dict) or content.get("recording") != OPERATOR_HEADER:
            return None
        version = str(content.get("version"))
        return cls(version, (version, json.dumps(content.get("types"), sort_keys=True)), line)


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines of a gzip file or of plain text, with their ends; a truncated last line is dropped.

    Raises:
        Problem: the file is damaged.
    """
    rest = b""
    for text in _unpacked(chunks):
        *lines, rest = (rest + text).split(b"\n")
        yield from (line + b"\n" for line in lines)


def rounds_of(lines: Iterable[bytes], service: str) -> Iterator[bytes]:
    """The lines of one service, without the header.

    Args:
        service: NAMESPACE/NAME.
    """
    # The recorder writes this first, which avoids parsing lines of hundreds of kilobytes.
    start = f'{{"service":{json.dumps(service)},'.encode()
    return (line for line in lines if line.startswith(start))


def kind_of(path: Path) -> Kind:
    """The program that wrote a recording.

    Raises:
        Problem: it cannot be read, or is no recording.
    """
    try:
        with path.open("rb") as file:
            first = next(lines_of(iter(lambda: file.read(_CHUNK), b"")), None)
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}") from error
    if first is not None and Header.of(first) is not None:
        return "operator"
    content: Any = None
    if first is not None:
        try:
            content = json.loads(first)
        except ValueError:
            content = None
    if isinstance(content, (list, dict)):
        return "engine"
    raise Problem(f"{path} is no recording", "Make one with `kubectl inflight record SERVICE`")


def _unpacked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    pieces, start = iter(chunks), b""
    while len(start) < len(_GZIP_MAGIC) and (piece := next(pieces, b"")):
        start += piece
    if start[: len(_GZIP_MAGIC)] != _GZIP_MAGIC:
        yield start
        yield from pieces
        return
    unpacker = zlib.decompressobj(_GZIP)
    try:
        yield unpacker.decompress(start)
        for piece in pieces:
            yield unpacker.decompress(piece)
    except zlib.error as error:
        raise Problem(f"the recording is damaged: {error}") from error

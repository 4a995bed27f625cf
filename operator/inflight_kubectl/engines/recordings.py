"""Recordings of decisions: detection of the file type, and extraction of one service's rounds.

Each round of a recording of the operator is whole, so the rounds of one service are a recording, and those of several
files with equal headers are one too. A file may be cut short. A recording of an engine is lines of JSON, mostly with
gzip.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inflight_base import recording
from inflight_kubectl.output import Problem

OPERATOR_HEADER = "inflight-operator decisions"

_GZIP = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"

Kind = Literal["operator", "engine"]


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a recording of the operator.

    Attributes:
        version: version of the operator that wrote it.
        identity: version and types; one program can read all recordings with equal identity.
        text: the line, with its end.
    """

    version: str
    identity: tuple[str, str]
    text: bytes

    @classmethod
    def of(cls, line: bytes) -> Header | None:
        """Returns the header in a line; None if it is no such header."""
        try:
            content = json.loads(line)
        except ValueError:
            return None
        if not isinstance(content, dict) or content.get("recording") != OPERATOR_HEADER:
            return None
        version = str(content.get("version"))
        return cls(version, (version, json.dumps(content.get("types"), sort_keys=True)), line)


def parts_of(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields the header of the operator's recording with an empty name, then service and message of each round; a
    truncated last one is dropped.

    Raises:
        Problem: the file is damaged, or of another format.
    """
    try:
        yield from recording.parts_of(chunks)
    except EOFError:
        return
    except recording.RecordingFormatError as error:
        raise Problem(f"the recording {error}") from error


def kind_of(path: Path) -> Kind:
    """Returns the program that wrote a recording.

    Raises:
        Problem: it cannot be read, or is no recording.
    """
    try:
        with path.open("rb") as file:
            start = file.read(recording.CHUNK)
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}") from error
    try:
        first = next(recording.parts_of([start]))[1]
    except (recording.RecordingFormatError, EOFError):
        first = _first_line(start)
    if Header.of(first) is not None:
        return "operator"
    try:
        content = json.loads(first)
    except ValueError:
        content = None
    if isinstance(content, (list, dict)):
        return "engine"
    raise Problem(f"{path} is no recording", "Make one with `kubectl inflight record SERVICE`")


def _first_line(start: bytes) -> bytes:
    """Returns the first line of plain text or gzip."""
    if start.startswith(_GZIP_MAGIC):
        with suppress(zlib.error):
            start = zlib.decompressobj(_GZIP).decompress(start)
    return start.partition(b"\n")[0]

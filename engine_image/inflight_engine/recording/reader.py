"""Reads a recording, from gzip or from plain JSON lines."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import msgspec

from inflight_engine.recording.lines import (
    FORMAT_VERSION,
    HEADER_TAG,
    Event,
    Header,
    Line,
    Repeated,
    Step,
)

_GZIP_MAGIC = b"\x1f\x8b"
_NOT_UNDERSTOOD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of decoding a line: bytes that are no UTF-8, and brackets without end, have errors of their own."""


class RecordingError(ValueError):
    """The file is no recording, damaged, or of another version of the format. The message continues a sentence that
    names the file."""


class _FirstLine(msgspec.Struct, tag_field="record", tag=HEADER_TAG):
    """The part of the header that all versions of the format have."""

    version: int
    program: str


class Recording:
    """A recording on disk. It may be growing still, or have been cut short when its engine was killed: the lines that
    are there are read.

    Attributes:
        header: its first line.
        cut_short: the file stops before its end; known once `events` was read through.
    """

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OSError: the file cannot be read.
            RecordingError: it is no recording, or of another version of the format.
        """
        self._path = path
        self.cut_short = False
        first = next(self._lines(), None)
        if first is None:
            raise RecordingError("was cut short before its first line" if self.cut_short else "is empty")
        self.header = _header(first)

    def events(self) -> Iterator[Event]:
        """Yield all lines but the first, from the start of the file at each call; repeated steps one by one.

        Raises:
            OSError: the file cannot be read.
            RecordingError: a line cannot be understood, steps are missing before it, or the file is damaged.
        """
        decoder = msgspec.json.Decoder[Line](Line)
        num_slots = self.header.config.capacity.max_num_seqs
        last: Step | None = None
        for number, line in enumerate(self._lines(), start=1):
            if number == 1:
                continue
            try:
                event = decoder.decode(line)
            except _NOT_UNDERSTOOD as error:
                raise RecordingError(f"cannot be understood in line {number}: {error}") from error
            if isinstance(event, Repeated):
                if last is None:
                    raise RecordingError(f"repeats a step in line {number}, but there was none before")
                for micros in event.micros:
                    last = last.again(micros)
                    yield last
                continue
            if isinstance(event, Step):
                if last is not None and event.step != last.step + 1:
                    raise RecordingError(
                        f"has step {event.step} in line {number}, where step {last.step + 1} should be"
                    )
                slot = max([*event.failed_slots, *event.failed_loads, *(slot for slot, _ in event.forced)], default=0)
                if slot >= num_slots:
                    raise RecordingError(f"names slot {slot} in line {number}, but its engine had {num_slots}")
                last = event
            yield event

    def _lines(self) -> Iterator[bytes]:
        """Yield whole lines, the first included."""
        self.cut_short = False
        number = 0
        with self._path.open("rb") as file:
            compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if compressed else file
            try:
                for number, line in enumerate(stream, start=1):  # noqa: B007 - named in the error below
                    if not line.endswith(b"\n") and not _is_json(line):
                        self.cut_short = True
                        return
                    yield line
            except EOFError:
                self.cut_short = True
            except (gzip.BadGzipFile, zlib.error) as error:
                raise RecordingError(f"is damaged after line {number}: {error}") from error


def _header(line: bytes) -> Header:
    try:
        first = msgspec.json.decode(line, type=_FirstLine)
    except _NOT_UNDERSTOOD as error:
        raise RecordingError("is no recording of inflight-engine: its first line is another") from error
    if first.version != FORMAT_VERSION:
        raise RecordingError(
            f"was written by inflight-engine {first.program} in format {first.version}, and this program reads format "
            f"{FORMAT_VERSION}: replay it with that version"
        )
    try:
        return msgspec.json.decode(line, type=Header)
    except _NOT_UNDERSTOOD as error:
        raise RecordingError(f"cannot be understood in line 1: {error}") from error


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except _NOT_UNDERSTOOD:
        return False
    return True

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
    MAX_INT32,
    Added,
    BlocksFilled,
    ChunksFailed,
    Event,
    Header,
    Repeated,
    Step,
)

_GZIP_MAGIC = b"\x1f\x8b"
_NOT_UNDERSTOOD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a line raises: bytes that are no UTF-8, and brackets without end, are errors of their own."""


class RecordingError(ValueError):
    """Not a recording, a damaged one, or one of a newer program. The message continues a sentence that names the
    file."""


class _FirstLine(msgspec.Struct, tag_field="record", tag=HEADER_TAG):
    """What all versions of the format have in common."""

    version: int
    program: str


class Recording:
    """A recording on disk. It may be growing still, or have been cut short when its engine was killed: what is there
    is used.

    Attributes:
        header: its first line.
        cut_short: whether the file stops before its end; known once `events` was read through.
    """

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OSError: the file cannot be read.
            RecordingError: it is no recording, or of a newer format.
        """
        self._path = path
        self.cut_short = False
        first = next(self._lines(), None)
        if first is None:
            raise RecordingError("was cut short before its first line" if self.cut_short else "is empty")
        self.header = _header(first)

    def events(self) -> Iterator[Event]:
        """All lines but the first, from the start of the file at each call.

        Raises:
            OSError: the file cannot be read.
            RecordingError: a line cannot be understood, steps are missing before it, or the file is damaged.
        """
        decoder = msgspec.json.Decoder[Event](Event)
        following: int | None = None
        for number, line in enumerate(self._lines(), start=1):
            if number == 1:
                continue
            try:
                event = decoder.decode(line)
            except _NOT_UNDERSTOOD as error:
                raise RecordingError(f"cannot be understood in line {number}: {error}") from error
            if isinstance(event, Step):
                if following not in (None, event.step):
                    raise RecordingError(f"has step {event.step} in line {number}, where step {following} should be")
                following = event.step + 1
                self._check_slots(event, number)
            elif isinstance(event, ChunksFailed):
                self._check_slot_ids(event.slots, number)
            elif isinstance(event, Repeated):
                if following is None:
                    raise RecordingError(f"repeats a step in line {number}, but there was none before")
                following += len(event.micros)
            elif isinstance(event, Added | BlocksFilled):
                runs = event.prompt_blocks if isinstance(event, Added) else event.blocks
                if len(runs) % 2:
                    raise RecordingError(f"has a run of blocks without its length in line {number}")
                if any(first + count > MAX_INT32 for first, count in zip(runs[::2], runs[1::2], strict=True)):
                    raise RecordingError(f"has a run of blocks beyond {MAX_INT32} in line {number}")
            yield event

    def _lines(self) -> Iterator[bytes]:
        """Whole lines, the first included."""
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

    def _check_slots(self, step: Step, number: int) -> None:
        slots = [*step.releases, *step.decodes]
        slots += [each.slot for each in step.preemptions]
        slots += [each.slot for each in step.starts]
        slots += [each.slot for each in step.chunks]
        self._check_slot_ids(slots, number)

    def _check_slot_ids(self, slots: list[int], number: int) -> None:
        num_slots = self.header.config.capacity.max_num_seqs
        if slots and max(slots) >= num_slots:
            raise RecordingError(f"names slot {max(slots)} in line {number}, but its engine had {num_slots}")


def _header(line: bytes) -> Header:
    try:
        first = msgspec.json.decode(line, type=_FirstLine)
    except _NOT_UNDERSTOOD as error:
        raise RecordingError("is no recording of inflight-engine: its first line is another") from error
    if first.version > FORMAT_VERSION:
        raise RecordingError(
            f"was written by inflight-engine {first.program} in format {first.version}, and this program reads formats "
            f"up to {FORMAT_VERSION}: replay it with that version or a later one"
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

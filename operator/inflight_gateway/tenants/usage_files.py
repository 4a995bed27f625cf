"""Files of the usage log. Everything blocks: run it in a thread.

A volume has one folder for each gateway pod that shares it, `0`, `1` and so on. A pod takes the first one that no other
pod has locked, so that it goes on with the counters of a pod that is gone. In it are segments of lines,
`usage-NNNNNN.jsonl`, and `checkpoint.json`: the counters up to a place in a segment, written with each new segment, so
that a start reads little more than one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

SEGMENT_BYTES = 16 * 2**20
"""Bytes from which a segment gets no more lines: some 60,000 lines."""

MAX_SEGMENTS = 60
"""Most segments, 960 MiB: the oldest one is deleted."""

MAX_PODS = 100


class Total(msgspec.Struct, frozen=True, array_like=True):
    """Counters of a label value at a service."""

    namespace: str
    service: str
    label: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def counters(self) -> tuple[int, int, int, int]:
        return self.requests, self.prompt_tokens, self.cached_tokens, self.completion_tokens


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usage of a request that ended.

    Attributes:
        time: Unix time of its end. tenant, key_id: empty at services without keys.
        status: HTTP status that the client got; 0: it left before; None: not known, its relay or gateway died.
    """

    time: float
    namespace: str
    service: str
    model: str
    request_id: str
    status: int | None
    tenant: str = ""
    key_id: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    continuations: int = 0


class _Checkpoint(msgspec.Struct, frozen=True):
    segment: int
    offset: int
    totals: list[Total]


_checkpoint = msgspec.json.Decoder(_Checkpoint)
_line = msgspec.json.Decoder(Line)


class UsageFiles:
    """The files of one pod. Args: volume: where the folders of all pods are."""

    def __init__(self, volume: Path, segment_bytes: int = SEGMENT_BYTES, max_segments: int = MAX_SEGMENTS) -> None:
        self._volume = volume
        self._segment_bytes = segment_bytes
        self._max_segments = max_segments
        self._folder: Path | None = None
        self._lock: int | None = None
        self._segment, self._size = 1, 0

    def open(self) -> tuple[Sequence[Total], Iterator[Line]]:
        """Takes a folder. Returns the counters of its checkpoint, and the lines after it. Lines that cannot be read are
        left out: the last one is torn if the pod was killed while it wrote.

        Raises:
            OSError: the volume cannot be read or locked.
        """
        self._folder = folder = self._take()
        segments = self._segments()
        known = _read_checkpoint(folder)
        if known is not None and known.segment not in segments:
            # Someone removed it: lines go where the checkpoint does not count them.
            self._segment = known.segment + 1
        if segments and segments[-1] >= self._segment:
            self._segment = segments[-1]
            self._size = _whole_lines(self._file(self._segment))
        first, offset = (known.segment, known.offset) if known is not None else (0, 0)
        after = [(number, offset if number == first else 0) for number in segments if number >= first]
        return (known.totals if known is not None else ()), self._lines(after)

    def begins_segment(self, length: int) -> bool:
        """Returns whether appending `length` bytes begins a segment, for which a checkpoint is due."""
        return self._size > 0 and self._size + length > self._segment_bytes

    def append(self, data: bytes) -> None:
        """Writes whole lines, and has the volume store them.

        Raises:
            OSError: the lines are not written.
        """
        segment, size = self._segment, self._size
        if self.begins_segment(len(data)):
            segment, size = segment + 1, 0
            for number in self._segments()[: 1 - self._max_segments]:
                self._file(number).unlink(missing_ok=True)
        file = os.open(self._file(segment), os.O_WRONLY | os.O_CREAT, 0o640)
        try:
            # What a failed attempt has left behind goes. A file that someone removed begins again.
            size = min(size, os.fstat(file).st_size)
            os.ftruncate(file, size)
            _write(file, data, size)
            os.fdatasync(file)
        finally:
            os.close(file)
        self._segment, self._size = segment, size + len(data)

    def checkpoint(self, totals: Sequence[Total]) -> None:
        """Stores the counters with all lines that were appended.

        Raises:
            OSError: they are not stored.
        """
        assert self._folder is not None
        content = msgspec.json.encode(_Checkpoint(self._segment, self._size, [*totals]))
        written = self._folder / "checkpoint.new"
        file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            _write(file, content, 0)
            os.fdatasync(file)
        finally:
            os.close(file)
        written.replace(self._folder / "checkpoint.json")

    def close(self) -> None:
        """Lets another pod take the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take(self) -> Path:
        for number in range(MAX_PODS):
            folder = self._volume / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o640)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            except OSError:
                os.close(lock)
                raise
            self._lock = lock
            return folder
        raise OSError(f"{MAX_PODS} other gateway pods use {self._volume}")

    def _file(self, segment: int) -> Path:
        assert self._folder is not None
        return self._folder / f"usage-{segment:06}.jsonl"

    def _segments(self) -> list[int]:
        assert self._folder is not None
        numbers = (file.stem.removeprefix("usage-") for file in self._folder.glob("usage-*.jsonl"))
        return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())

    def _lines(self, segments: Sequence[tuple[int, int]]) -> Iterator[Line]:
        for number, offset in segments:
            with self._file(number).open("rb") as file:
                file.seek(offset)
                for text in file:
                    if text.endswith(b"\n"):
                        with suppress(ValueError):
                            yield _line.decode(text)


def _read_checkpoint(folder: Path) -> _Checkpoint | None:
    try:
        return _checkpoint.decode((folder / "checkpoint.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _whole_lines(file: Path) -> int:
    """Returns the bytes of a file up to the end of its last whole line."""
    with file.open("rb") as read:
        end = read.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - 2**16)
            read.seek(begin)
            found = read.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0


def _write(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written

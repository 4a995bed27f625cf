"""Files of a recording in one folder, of bounded size together: the oldest are deleted at the size limit."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

FILES = 4
"""That share the size of the recording: at most a quarter of it is lost when the oldest goes."""

FLUSH_BYTES = 64 * 1024
"""Of lines, before compression, that are written at once."""

FLUSH_SECONDS = 10.0
"""Of rounds: maximum loss when the process is killed."""

_GZIP = 16 + zlib.MAX_WBITS
_LEVEL = 1
"""Of compression: a fifth larger than the default at a third of its time."""


class RotatedFiles:
    """Lines of text in `decisions-NUMBER.jsonl.gz`; numbers go on from those that are in the folder.

    Args:
        header: makes the first line of each file.
        max_bytes: of all files in the folder together.

    Attributes:
        number: of the file that is written; 0 before the first.
    """

    def __init__(self, folder: Path, header: Callable[[], bytes], max_bytes: int) -> None:
        self.number = 0
        self._folder = folder
        self._header = header
        self._max_bytes = max_bytes
        self._file: BinaryIO | None = None
        self._compressor = zlib.compressobj(_LEVEL, wbits=_GZIP)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._bytes = 0
        self._flushed = float("-inf")

    def begin(self) -> int:
        """The number of the file that the next line goes to: another one where the last is full.

        Raises:
            OSError: it cannot be made.
        """
        if self._file is not None and self._bytes >= self._max_bytes // FILES:
            self.close()
        if self._file is None:
            self._open()
        return self.number

    def write(self, line: bytes, now: float) -> None:
        """One more line in the file that `begin` made.

        Args:
            now: steady clock.

        Raises:
            OSError: it cannot be written.
        """
        self._pending.append(line)
        self._pending_bytes += len(line)
        if self._pending_bytes >= FLUSH_BYTES or now - self._flushed >= FLUSH_SECONDS:
            self._flushed = now
            self._flush(zlib.Z_SYNC_FLUSH)

    def close(self) -> None:
        """
        Raises:
            OSError: the rest cannot be written.
        """
        if self._file is None:
            return
        self._flush(zlib.Z_FINISH)
        self.abandon()

    def abandon(self) -> None:
        """Leaves the file as it is."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> None:
        there = sorted(self._folder.glob("decisions-*.jsonl.gz"))
        for old in there:
            if sum(one.stat().st_size for one in there if one.exists()) <= self._max_bytes * (FILES - 1) // FILES:
                break
            old.unlink()
        self.number = max((_number(one) for one in there), default=0) + 1
        self._file = (self._folder / f"decisions-{self.number:06}.jsonl.gz").open("xb", buffering=0)
        self._compressor = zlib.compressobj(_LEVEL, wbits=_GZIP)
        self._pending, self._pending_bytes, self._bytes = [self._header()], 0, 0

    def _flush(self, mode: int) -> None:
        compressed = self._compressor.compress(b"".join(self._pending)) + self._compressor.flush(mode)
        self._pending, self._pending_bytes = [], 0
        self._bytes += len(compressed)
        while compressed and self._file is not None:
            compressed = compressed[self._file.write(compressed) :]


def _number(path: Path) -> int:
    digits = path.name.removeprefix("decisions-").removesuffix(".jsonl.gz")
    return int(digits) if digits.isdigit() else 0

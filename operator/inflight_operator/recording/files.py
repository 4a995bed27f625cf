"""Files of a recording in one folder, of bounded size together: the oldest are deleted at the size limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import zstandard

from inflight_base.recording import compressor

FILES = 4
"""That share the size of the recording: at most a quarter of it is lost when the oldest goes."""

FLUSH_BYTES = 256 * 1024
"""Of rounds, before compression, that are written at once."""

FLUSH_SECONDS = 10.0
"""Of rounds: maximum loss when the process is killed."""


class RotatedFiles:
    """Rounds in `decisions-NUMBER.zst`; numbers go on from those that are in the folder.

    Args:
        header: makes the beginning of each file.
        max_bytes: of all files in the folder together.
    """

    def __init__(self, folder: Path, header: Callable[[], bytes], max_bytes: int) -> None:
        self._folder = folder
        self._header = header
        self._max_bytes = max_bytes
        self._file: BinaryIO | None = None
        self._compressor = compressor()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._bytes = 0
        self._flushed = float("-inf")

    def write(self, content: bytes, now: float) -> None:
        """Adds to the file; begins another one where the last is full.

        Args:
            now: steady clock.

        Raises:
            OSError: it cannot be written.
        """
        if self._file is not None and self._bytes >= self._max_bytes // FILES:
            self.close()
        if self._file is None:
            self._open()
        self._pending.append(content)
        self._pending_bytes += len(content)
        if self._pending_bytes >= FLUSH_BYTES or now - self._flushed >= FLUSH_SECONDS:
            self._flushed = now
            self._flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)

    def close(self) -> None:
        """
        Raises:
            OSError: the rest cannot be written.
        """
        if self._file is None:
            return
        self._flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)
        self.abandon()

    def abandon(self) -> None:
        """Leaves the file as it is."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> None:
        there = sorted(self._folder.glob("decisions-*.zst"))
        for old in there:
            if sum(one.stat().st_size for one in there if one.exists()) <= self._max_bytes * (FILES - 1) // FILES:
                break
            old.unlink()
        number = max((_number(one) for one in there), default=0) + 1
        self._file = (self._folder / f"decisions-{number:06}.zst").open("xb", buffering=0)
        self._compressor = compressor()
        self._pending, self._pending_bytes, self._bytes = [self._header()], 0, 0

    def _flush(self, mode: int) -> None:
        compressed = self._compressor.compress(b"".join(self._pending)) + self._compressor.flush(mode)
        self._pending, self._pending_bytes = [], 0
        self._bytes += len(compressed)
        while compressed and self._file is not None:
            compressed = compressed[self._file.write(compressed) :]


def _number(path: Path) -> int:
    digits = path.name.removeprefix("decisions-").removesuffix(".zst")
    return int(digits) if digits.isdigit() else 0

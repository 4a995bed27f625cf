"""How much of the model's weights this process has read."""

from __future__ import annotations

import threading
import time


class ReadingProgress:
    """Bytes of one reading. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read = 0
        self._total = 0
        self._began = 0.0

    def begin(self, num_bytes: int) -> None:
        """Begin to read so many bytes, from now on."""
        with self._lock:
            self._read, self._total, self._began = 0, num_bytes, time.monotonic()

    def add(self, num_bytes: int) -> None:
        """Count bytes that were read."""
        with self._lock:
            self._read = min(self._total, self._read + num_bytes)

    @property
    def now(self) -> tuple[int, int, float]:
        """Bytes that were read, those of the whole, and seconds since it began; zeros before that."""
        with self._lock:
            return self._read, self._total, time.monotonic() - self._began if self._total else 0.0


READING = ReadingProgress()
"""The weights of the process's model."""

"""The gateway's key in its mounted Secret."""

from __future__ import annotations

import time
from pathlib import Path

from inflight_base.signing import is_signed

PREVIOUS = "previous"
"""Name of the file beside the key's, with the key before a rotation."""


class GatewayKey:
    """The keys in a file and beside it. Once read, they stay until others can be read: the operator creates a deleted
    Secret again with the same ones.

    Attributes:
        current, previous: the keys; None: there is none.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.current: bytes | None = None
        self.previous: bytes | None = None
        self.refresh()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The current and the previous key."""
        return tuple(key for key in (self.current, self.previous) if key is not None)

    def refresh(self) -> bool:
        """Reads the files; returns whether the keys changed."""
        before = self.keys
        # A Secret changes between two reads as a whole: the old key followed by itself as the previous one is harmless,
        # the new one without it is not.
        current = _content(self._file)
        if current is not None:
            self.current, self.previous = current, _content(self._file.with_name(PREVIOUS))
        return self.keys != before

    def signed(self, message: bytes, value: str) -> bool:
        """Returns whether the operator signed a message; False without a key."""
        return is_signed(self.keys, message, value, time.time())


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes().strip() or None
    except OSError:
        return None

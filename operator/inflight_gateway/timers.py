"""Things that end a fixed time after they were last begun. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """`now`: seconds of one monotonic clock. Args: seconds: until a timer ends."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[Key, float] = {}
        """In the order of these times."""

    def __len__(self) -> int:
        return len(self._until)

    def begin(self, key: Key, now: float) -> None:
        """Begins a timer, or begins it again."""
        self._until.pop(key, None)
        self._until[key] = now + self._seconds

    def stop(self, key: Key) -> None:
        """Ignored without a timer."""
        self._until.pop(key, None)

    def runs(self, key: Key, now: float) -> bool:
        return self._until.get(key, now) > now

    def expire(self, now: float) -> list[Key]:
        """Removes those that have ended, and returns them."""
        ended = []
        for key, until in self._until.items():
            if until > now:
                break
            ended.append(key)
        for key in ended:
            del self._until[key]
        return ended

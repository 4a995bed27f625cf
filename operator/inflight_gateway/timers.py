"""Timers that end a fixed time after they last began. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """Timers by key. Args: seconds: duration of a timer. `now` is in seconds of one monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[Key, float] = {}
        """End of each timer, in seconds; the first to end comes first."""

    def __len__(self) -> int:
        return len(self._until)

    def __iter__(self) -> Iterator[Key]:
        """Iterates over the keys, the first timer to end first."""
        return iter(self._until)

    def begin(self, key: Key, now: float) -> None:
        """Starts a timer, or restarts it."""
        self._until.pop(key, None)
        self._until[key] = now + self._seconds

    def stop(self, key: Key) -> None:
        """Removes a timer, if there is one."""
        self._until.pop(key, None)

    def runs(self, key: Key, now: float) -> bool:
        return self._until.get(key, now) > now

    def expire(self, now: float) -> list[Key]:
        """Removes the timers that have ended, and returns their keys."""
        ended = []
        for key, until in self._until.items():
            if until > now:
                break
            ended.append(key)
        for key in ended:
            del self._until[key]
        return ended

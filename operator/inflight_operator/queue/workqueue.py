"""Work queue of keys: each at most once in the queue and never processed twice at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class WorkQueue(Generic[Key]):
    """The client-go work queue's contract: a key added while it is processed is returned again afterwards, a waiting
    key is not added twice."""

    def __init__(self) -> None:
        self._order: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._working: set[Key] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key) -> None:
        if key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._working:
            self._order.put_nowait(key)

    async def take(self) -> Key:
        """The key that has waited longest; `done` must follow."""
        key = await self._order.get()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: Key) -> None:
        self._working.discard(key)
        if key in self._waiting:
            self._order.put_nowait(key)

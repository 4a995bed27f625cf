"""Fair shares of scrapes: groups take turns, and a large page keeps its place for as long as no other waits for it."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from inflight_base.page.alarm import Alarm

T = TypeVar("T")


class Turns(Generic[T]):
    """A queue whose groups take turns: one group, however many wait of it, delays each other group by one turn."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def add(self, group: str, item: T) -> None:
        self._groups.setdefault(group, deque()).append(item)

    def next(self) -> T:
        group, items = next(iter(self._groups.items()))
        item = items.popleft()
        if items:
            self._groups.move_to_end(group)
        else:
            del self._groups[group]
        return item


class Places:
    """Places for work that may stall. Groups take turns for them, and a holder loses its place to one that waits after
    a while: the sooner, the more groups wait.

    Args:
        count: number of places.
        kept_s: seconds for which a place is held at least, if few groups wait.
        within_s: seconds within which each group gets a place, however many wait.
    """

    def __init__(self, count: int, kept_s: float, within_s: float = math.inf) -> None:
        self._free = count
        self._kept_s = kept_s
        self._shared_s = within_s * count
        self._waiting: Turns[asyncio.Future[None]] = Turns()
        self._num_waiting = 0
        self._held: dict[Callable[[], None], float] = {}
        """Ends of those whose place is not taken away yet, the longest held first, and when each got it."""
        self._num_ending = 0
        self._alarm = Alarm(self._make_room)

    @asynccontextmanager
    async def held(self, group: str, end: Callable[[], None]) -> AsyncGenerator[None, None]:
        """Holds a place. Args: end: called when it is another's turn: the place is to be left at once."""
        await self._take(group)
        self._held[end] = asyncio.get_running_loop().time()
        self._make_room()
        try:
            yield
        finally:
            if self._held.pop(end, None) is None:
                self._num_ending -= 1
            self._leave()

    async def _take(self, group: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.add(group, turn)
        self._num_waiting += 1
        self._make_room()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn came at the same time
                self._leave()
            raise
        finally:
            self._num_waiting -= turn.cancelled()

    def _leave(self) -> None:
        """Passes a place on."""
        while self._waiting:
            turn = self._waiting.next()
            if not turn.done():
                self._num_waiting -= 1
                turn.set_result(None)
                return
        self._free += 1

    def _make_room(self) -> None:
        """Ends those who have held their places for long enough, one for each who waits."""
        loop = asyncio.get_running_loop()
        while self._held and self._num_waiting > self._num_ending:
            end, since = next(iter(self._held.items()))
            over = since + min(self._kept_s, self._shared_s / max(1, len(self._waiting)))
            if loop.time() < over:
                self._alarm.set(over)
                return
            del self._held[end]
            self._num_ending += 1
            end()

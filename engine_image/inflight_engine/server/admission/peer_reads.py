"""Bounds what peers read of this engine's weights, so that its own requests keep their target."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable

from inflight_contract.errors import ApiError
from inflight_engine.messages import StepStats
from inflight_settings.scheduling import ServiceClass

MOST_READS = 4
"""Blocks that are sent at once: enough for the fastest links, as each is sent at the speed of memory."""
MOST_WAITING = 64
"""Reads that wait for another to end."""
_WAIT_SECONDS = 2.0
_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 5.0


class PeerReads:
    """The reads under way.

    Steps are slow while requests run and the latest step took longer than the target: no read begins then, and those
    under way pause. Without a target they are never slow.

    Args:
        target: seconds; None: the shortest TPOT target of a class.
        stats: returns those of the latest step.

    Attributes:
        sent_bytes, refused: since start.
    """

    def __init__(self, target: float | None, classes: Iterable[ServiceClass], stats: Callable[[], StepStats]) -> None:
        self.sent_bytes = self.refused = 0
        of_classes = (each.tpot_target for each in classes if each.tpot_target is not None)
        self._target = min(of_classes, default=None) if target is None else target
        self._stats = stats
        self._slots = asyncio.Semaphore(MOST_READS)
        self._waiting = 0

    @property
    def slow(self) -> bool:
        """Return whether steps are slow."""
        stats = self._stats()
        return self._target is not None and stats.num_running > 0 and stats.step_seconds > self._target

    async def begin(self) -> None:
        """Wait until a read may begin; `end` follows.

        Raises:
            ApiError: 503, steps are slow, or too many read.
        """
        if self.slow:
            raise self._refused("requests of this engine miss their TPOT target")
        if self._waiting >= MOST_WAITING:
            raise self._refused("too many peers read from this engine")
        self._waiting += 1
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            raise self._refused("too many peers read from this engine") from None
        finally:
            self._waiting -= 1

    def end(self) -> None:
        self._slots.release()

    async def send(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass the parts of a block on, while steps are not slow.

        Raises:
            TimeoutError: they are slow for too long.
        """
        async for part in parts:
            until = time.monotonic() + _LONGEST_PAUSE_SECONDS
            while self.slow:
                if time.monotonic() > until:
                    raise TimeoutError("a peer's read was ended: requests of this engine miss their TPOT target")
                await asyncio.sleep(_PAUSE_SECONDS)
            self.sent_bytes += len(part)
            yield part

    def _refused(self, why: str) -> ApiError:
        self.refused += 1
        return ApiError(503, f"{why}: ask another one, or later", code="peer_busy", headers={"retry-after": "1"})

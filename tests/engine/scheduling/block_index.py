"""Follows the events of the cache, and of the tier behind it, as a consumer does, and checks each of them."""

from __future__ import annotations

import numpy as np

from inflight_engine.block_events import DEVICE, HASH_SIZE, HOST, BlocksRemoved, BlocksStored
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.cache.tiers import HostTier
from inflight_engine.scheduling.scheduler import Scheduler

COMMON = root_hash("", "")


class BlockIndex:
    """The hashes that can be found, by events alone.

    Args:
        scheduler: its events are taken out of it.

    Attributes:
        hashes: on the device. in_tier: in host memory.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.hashes: set[bytes] = set()
        self.in_tier: set[bytes] = set()
        self._pool, self._tier = scheduler.running.pool, scheduler.offload._tier

    def check(self) -> None:
        """Apply what is new, and compare with what can be found."""
        pool = self._pool
        assert pool.events is not None
        for event in pool.events:
            hashes = [event.hashes[start : start + HASH_SIZE] for start in range(0, len(event.hashes), HASH_SIZE)]
            assert hashes
            known = {DEVICE: self.hashes, HOST: self.in_tier}[event.medium]
            match event:
                case BlocksStored():
                    if event.medium == DEVICE:
                        assert not (event.parent and event.root)
                        tokens = np.frombuffer(event.token_ids, "<i4")
                        assert block_hashes(tokens, pool.block_size, event.parent or event.root or COMMON) == hashes
                    else:
                        assert not (event.parent)
                        assert not (event.root)
                        assert not (event.token_ids)
                    assert known.isdisjoint(hashes)
                    known.update(hashes)
                case BlocksRemoved():
                    assert known.issuperset(hashes)
                    known.difference_update(hashes)
        pool.events.clear()
        assert self.hashes == findable(pool)
        assert self.in_tier == (findable(self._tier._pool) if isinstance(self._tier, HostTier) else set())


def findable(pool: BlockPool) -> set[bytes]:
    """The hashes that a pool can find."""
    return {each for each in pool._block_of if len(pool.match([each]))}

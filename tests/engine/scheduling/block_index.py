"""Follows the events of a block pool as a consumer does, and checks each of them."""

from __future__ import annotations

import numpy as np

from inflight_engine.block_events import HASH_SIZE, BlocksRemoved, BlocksStored
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.cache.prefix import block_hashes, root_hash

COMMON = root_hash("", "")


class BlockIndex:
    """The hashes that can be found, by the pool's events alone. Args: pool: its events are taken out of it."""

    def __init__(self, pool: BlockPool) -> None:
        self.hashes: set[bytes] = set()
        self._pool = pool

    def check(self) -> None:
        """Apply what is new, and compare with what the pool can find."""
        pool = self._pool
        assert pool.events is not None
        for event in pool.events:
            hashes = [event.hashes[start : start + HASH_SIZE] for start in range(0, len(event.hashes), HASH_SIZE)]
            assert hashes
            match event:
                case BlocksStored():
                    assert not (event.parent and event.root)
                    tokens = np.frombuffer(event.token_ids, "<i4")
                    assert block_hashes(tokens, pool.block_size, event.parent or event.root or COMMON) == hashes
                    assert self.hashes.isdisjoint(hashes)
                    self.hashes.update(hashes)
                case BlocksRemoved():
                    assert self.hashes.issuperset(hashes)
                    self.hashes.difference_update(hashes)
        pool.events.clear()
        assert self.hashes == {each for each in pool._block_of if len(pool.match([each]))}

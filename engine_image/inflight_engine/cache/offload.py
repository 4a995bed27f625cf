"""Copies of steps between the KV cache and the tier behind it: what leaves the device's blocks, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from inflight_cost.model import CostModel
from inflight_engine.cache.block_pool import BlockIds, BlockPool
from inflight_engine.cache.loading import LoadRates, loading_is_cheaper
from inflight_engine.cache.tiers import Stores, Tier

_NO_PLACES: BlockIds = np.empty(0, np.int32)


class Offload:
    """Stores what the device evicts, and loads what a start finds neither computed nor cached.

    A block is copied out in the plan whose step may write to it, before that writes anything. So what is evicted is
    stored whatever the steps in flight do; only where one of them gives nothing, all that was stored meanwhile is
    forgotten, as it may be what that step was to compute.

    Args:
        tier: None: what is evicted is lost.
        pool: the device's blocks.
        longest: tokens of the longest request.
        always: store and load whatever there is; otherwise load only where that takes less time than computing it, and
            store only where it would for the last block of the longest request.
        cost: returns the cost model; None: not known.

    Attributes:
        rates: what loading and computing take, as measured; while unknown, only `always` loads.
        num_stored, num_loaded, num_failed: blocks copied out and in since start, and those whose copies in failed.
    """

    def __init__(
        self, tier: Tier | None, pool: BlockPool, *, longest: int, always: bool, cost: Callable[[], CostModel | None]
    ) -> None:
        self.rates: LoadRates | None = None
        self.num_stored = self.num_loaded = self.num_failed = 0
        self._tier = tier
        self._always = always
        self._block_size = pool.block_size
        self._longest = longest
        self._cost = cost
        self._held: list[BlockIds] = []
        self._copies: dict[int, int] = {}
        """By place, the block that the next plan copies there."""
        self._in_flight: dict[int, BlockIds] = {}
        """By the step of a plan, the places that it copies to."""
        if tier is not None:
            pool.offload = self._store

    def usage(self) -> int:
        """Return the number of blocks that the tier holds."""
        return 0 if self._tier is None else self._tier.usage()

    def has(self, block_hash: bytes) -> bool:
        """Return whether the tier has a block with this content."""
        return self._tier is not None and self._tier.match([block_hash]) > 0

    def load(self, hashes: Sequence[bytes], num_before: int) -> BlockIds:
        """Return the places to load the content of leading hashes from, where loading it takes less time than computing
        it. They are held until `release`.

        Args:
            num_before: tokens before those of the hashes.
        """
        if self._tier is None or not hashes:
            return _NO_PLACES
        count = self._tier.match(hashes)
        if not count or not self._pays(count * self._block_size, num_before):
            return _NO_PLACES
        places = self._tier.load(hashes[:count])
        self._held.append(places)
        self.num_loaded += count
        return places

    def release(self) -> None:
        """Hold what was loaded no longer: the plan that copies it is made."""
        if self._tier is not None and self._held:
            for places in self._held:
                self._tier.release(places)
            self._held.clear()

    def fail(self, places: Sequence[int]) -> None:
        """Forget the content of places from which nothing, or something else, was loaded."""
        if self._tier is not None:
            self._tier.drop(places)
            self.num_failed += len(places)

    def plan(self, step: int) -> Stores | None:
        """Return the copies out of the plan that is made."""
        if not self._copies:
            return None
        places, blocks = (np.fromiter(each, np.int32) for each in (self._copies.keys(), self._copies.values()))
        self._copies = {}
        self._in_flight[step] = places
        self.num_stored += len(places)
        return Stores(blocks, places)

    def take_in(self, step: int) -> None:
        """A step has made its copies."""
        if self._in_flight:
            self._in_flight.pop(step, None)

    def forget(self) -> None:
        """Forget what plans in flight copy out, and what the next one would: a step may not have computed it."""
        if self._tier is not None:
            self._tier.drop([*self._copies, *(place for each in self._in_flight.values() for place in each.tolist())])
            self._copies.clear()
            self._in_flight.clear()

    def _store(self, blocks: npt.NDArray[np.intp], hashes: list[bytes]) -> None:
        """Take in what an allocation evicts."""
        if self._tier is None or not self._pays(self._block_size, self._longest - self._block_size):
            return
        indices, places = self._tier.reserve(hashes)
        self._tier.store(places, [hashes[index] for index in indices])
        # A place that is given up again before the plan is made gets only what it holds at last.
        self._copies.update(zip(places.tolist(), blocks[indices].tolist(), strict=True))

    def _pays(self, num_tokens: int, num_before: int) -> bool:
        if self._always:
            return True
        return self.rates is not None and loading_is_cheaper(num_tokens, num_before, self.rates, self._cost())

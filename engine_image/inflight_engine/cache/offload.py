"""Copies of steps between the KV cache and the tier behind it: what leaves the device's blocks, and what comes back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from inflight_cost.model import CostModel
from inflight_engine.cache.block_pool import BlockIds, BlockPool
from inflight_engine.cache.loading import LoadRates, computing_seconds, loading_is_cheaper
from inflight_engine.cache.tiers import Content, Stores, Tier

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
        stored: called with the places that a step has copied to, once it has, and with what it copied; a plan that was
            made meanwhile may have given a place to other content.
        used: called with the hashes of evicted blocks that are not copied, as the tier has them already.
        damaged: called with the hashes of blocks whose loads failed.
    """

    def __init__(
        self, tier: Tier | None, pool: BlockPool, *, longest: int, always: bool, cost: Callable[[], CostModel | None]
    ) -> None:
        self.rates: LoadRates | None = None
        self.num_stored = self.num_loaded = self.num_failed = 0
        self.stored: Callable[[list[int], list[Content | None]], None] | None = None
        self.used: Callable[[list[bytes]], None] | None = None
        self.damaged: Callable[[Sequence[bytes]], None] | None = None
        self._tier = tier
        self._always = always
        self._block_size = pool.block_size
        self._longest = longest
        self._most_fetching = 0 if tier is None else tier.num_places // 2
        self._cost = cost
        self._held: list[BlockIds] = []
        self._copies: dict[int, int] = {}
        """By place, the block that the next plan copies there."""
        self._in_flight: dict[int, dict[int, Content | None]] = {}
        """By the step of a plan, the places that it copies to, and what it copies there."""
        self._fetching: dict[int, tuple[list[bytes], BlockIds]] = {}
        """By number, what comes from behind the tier, and to which places."""
        if tier is not None:
            pool.offload = self._store

    def usage(self) -> int:
        """Return the number of blocks that the tier holds."""
        return 0 if self._tier is None else self._tier.usage()

    def has(self, block_hash: bytes) -> bool:
        """Return whether the tier has a block with this content."""
        return self._tier is not None and len(self._tier.match([block_hash])) > 0

    def may_have(self, block_hash: bytes) -> bool:
        """Return whether the tier has a block with this content, or it is on its way there."""
        return self.has(block_hash) or any(block_hash in hashes for hashes, _ in self._fetching.values())

    def copied(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the places of leading hashes whose content a plan has copied there, or what was behind the tier."""
        if self._tier is None:
            return []
        places = self._tier.match(hashes).tolist()
        return list(itertools.takewhile(lambda place: place not in self._copies, places))

    def content(self, place: int) -> Content | None:
        """Return what a place of the tier has; None: nothing. Any thread may ask."""
        return None if self._tier is None else self._tier.content(place)

    def predicted(self, hashes: Sequence[bytes], num_before: int) -> tuple[int, float]:
        """Predict a `load`: returns its tokens, and the seconds that it takes, 0 where its speed is not known."""
        if self._tier is None or not hashes:
            return 0, 0.0
        num_tokens = len(self._tier.match(hashes)) * self._block_size
        if not num_tokens or not self.pays(num_tokens, num_before):
            return 0, 0.0
        return num_tokens, num_tokens / self.rates.copy if self.rates is not None and self.rates.copy > 0 else 0.0

    def load(self, hashes: Sequence[bytes], num_before: int) -> BlockIds:
        """Return the places to load the content of leading hashes from, where loading it takes less time than computing
        it. They are held until `release`.

        Args:
            num_before: tokens before those of the hashes.
        """
        if self._tier is None or not hashes:
            return _NO_PLACES
        count = len(self._tier.match(hashes))
        if not count or not self.pays(count * self._block_size, num_before):
            return _NO_PLACES
        places = self._tier.load(hashes[:count])
        self._held.append(places)
        self.num_loaded += count
        return places

    def pays(self, num_tokens: int, num_before: int, seconds: float = 0.0) -> bool:
        """Return whether loading tokens takes less time than computing them.

        Args:
            num_before: tokens before them.
            seconds: until they can be loaded.
        """
        if self._always:
            return True
        return self.rates is not None and loading_is_cheaper(num_tokens, num_before, self.rates, self._cost(), seconds)

    def seconds_to_compute(self, num_tokens: int, num_before: int) -> float | None:
        """Predict how long computing tokens takes; None: not known."""
        return None if self.rates is None else computing_seconds(num_tokens, num_before, self.rates, self._cost())

    def release(self) -> None:
        """Hold what was loaded no longer: the plan that copies it is made."""
        if self._tier is not None and self._held:
            for places in self._held:
                self._tier.release(places)
            self._held.clear()

    def fetch(self, number: int, hashes: Sequence[bytes]) -> tuple[list[int], BlockIds]:
        """Hold places for content that comes from behind the tier until `fetched`. What is here already counts as used.
        All that comes has half of the places at most.

        Returns:
            Indices of the hashes that get places, the leading ones of those that are missing, and these.
        """
        if self._tier is None:
            return [], _NO_PLACES
        room = max(0, self._most_fetching - sum(len(places) for _, places in self._fetching.values()))
        missing = [index for index, block_hash in enumerate(hashes) if not self.has(block_hash)]
        if len(missing) > room:
            hashes = hashes[: missing[room]]
        indices, places = self._tier.reserve(hashes)
        # What the next plan would copy there is given up. What plans in flight copy there comes before it.
        for place in places.tolist():
            self._copies.pop(place, None)
        self._fetching[number] = [hashes[index] for index in indices], places
        return indices, places

    def fetched(self, number: int, count: int) -> None:
        """So many of the leading blocks of a `fetch` have come; the rest does not."""
        if self._tier is not None:
            hashes, places = self._fetching.pop(number)
            self._tier.store(places[:count], hashes[:count])
            self._tier.release(places[count:])

    def fail(self, places: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Forget content that was not what a plan loaded from these places, but not what has come there since."""
        if self._tier is not None:
            if self.damaged is not None:
                self.damaged(hashes)
            held = zip(places, map(self.content, places), hashes, strict=True)
            self._tier.drop([place for place, content, each in held if content and content.block_hash == each])
            self.num_failed += len(places)

    def plan(self, step: int) -> Stores | None:
        """Return the copies out of the plan that is made."""
        if not self._copies:
            return None
        places, blocks = (np.fromiter(each, np.int32) for each in (self._copies.keys(), self._copies.values()))
        self._copies = {}
        self._in_flight[step] = {place: self.content(place) for place in places.tolist()}
        self.num_stored += len(places)
        return Stores(blocks, places)

    def take_in(self, step: int) -> None:
        """A step has made its copies."""
        if self._in_flight:
            copied = self._in_flight.pop(step, None)
            if copied and self.stored is not None:
                self.stored(list(copied), list(copied.values()))

    def forget(self) -> None:
        """Forget what plans in flight copy out, and what the next one would: a step may not have computed it."""
        if self._tier is not None:
            self._tier.drop([*self._copies, *(place for each in self._in_flight.values() for place in each)])
            self._copies.clear()
            self._in_flight.clear()

    def clear(self) -> None:
        """Forget all that the tier holds, while nothing is on its way there."""
        self.forget()
        if self._tier is not None:
            self._tier.drop(range(self._tier.num_places))

    def _store(self, blocks: npt.NDArray[np.intp], hashes: list[bytes]) -> None:
        """Take in what an allocation evicts."""
        if self._tier is None or not self.pays(self._block_size, self._longest - self._block_size):
            return
        indices, places = self._tier.reserve(hashes)
        self._tier.store(places, [hashes[index] for index in indices])
        if self.used is not None and len(indices) < len(hashes):
            stored = set(indices)
            self.used([each for index, each in enumerate(hashes) if index not in stored])
        # A place that is given up again before the plan is made gets only what it holds at last.
        self._copies.update(zip(places.tolist(), blocks[indices].tolist(), strict=True))

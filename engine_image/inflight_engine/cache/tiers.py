"""Tiers of the KV cache behind the device: what content they hold, where, and what they give up. Numbers only: the
runner has the bytes, and copies them in the order of the plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from inflight_engine.block_events import HOST, BlockEvent, BlocksStored
from inflight_engine.cache.block_pool import BlockIds, BlockPool


class Stores(msgspec.Struct, frozen=True, eq=False):
    """Blocks to copy out of the KV cache to host memory, one to one.

    Attributes:
        block_ids, host_block_ids: int32, of equal length; each all different.
    """

    block_ids: BlockIds
    host_block_ids: BlockIds


class Content(NamedTuple):
    """Content of a place. `number`: counts the contents that the place had, so that one that comes back is another one:
    the place has it before its bytes come."""

    block_hash: bytes
    number: int


class Tier(Protocol):
    """A bounded store of blocks by the hash of their content. A place is the number of a block in it.

    What is stored can be found at once: whoever loads it copies after the copy that brings it. A place that is reserved
    or loaded from is held until it is stored to or released, so nothing is copied over what the same step reads.

    Attributes:
        num_places: with content or without.
    """

    num_places: int

    def match(self, hashes: Sequence[bytes]) -> BlockIds:
        """Return the places of the hashes, from the first on, that have their content here. They may be given up as
        soon as another method is called."""

    def reserve(self, hashes: Sequence[bytes]) -> tuple[list[int], BlockIds]:
        """Hold places for content that comes; what was there is given up, least recently used first. Content that is
        here already counts as used. Where most places are held, the last hashes get those that are left.

        Returns:
            Indices of the hashes that get places, and these.
        """

    def store(self, places: BlockIds, hashes: Sequence[bytes]) -> None:
        """Make content findable that is copied to reserved places, which are held no longer. The first is given up
        first. A place whose content has come to another one meanwhile is empty."""

    def load(self, hashes: Sequence[bytes]) -> BlockIds:
        """Hold the places of hashes that `match` has found."""

    def release(self, places: BlockIds) -> None:
        """Hold places no longer. What a `load` has brought to the device comes back when the device evicts it, unless
        `Offload.pays` finds then that it is not worth it. So it is given up next, the last first; while places are
        empty it counts as used. Places that were reserved and not stored to are empty."""

    def content(self, place: int) -> Content | None:
        """Return what a place has; None: nothing. Any thread may ask."""

    def drop(self, places: Sequence[int]) -> None:
        """Forget what these places hold: it was never copied there, is not what was, or is given back."""

    def usage(self) -> int:
        """Return the number of places with content."""


class HostTier:
    """A tier in host memory.

    Args:
        events: gets records of what it holds; None: no records.
    """

    def __init__(self, num_blocks: int, block_size: int, events: list[BlockEvent] | None = None) -> None:
        self.num_places = num_blocks
        self._pool = BlockPool(num_blocks, block_size, events, HOST)
        self._num_contents = [0] * num_blocks

    def match(self, hashes: Sequence[bytes]) -> BlockIds:
        """See `Tier`."""
        return self._pool.match(hashes)

    def reserve(self, hashes: Sequence[bytes]) -> tuple[list[int], BlockIds]:
        """See `Tier`."""
        pool = self._pool
        places = pool.find(hashes)
        known = places[places >= 0]
        pool.share(known)
        pool.free(known[::-1])
        missing = np.flatnonzero(places < 0)
        missing = missing[max(0, len(missing) - pool.num_free) :]
        places = pool.allocate(len(missing))
        for place in places.tolist():
            self._num_contents[place] += 1
        return missing.tolist(), places

    def store(self, places: BlockIds, hashes: Sequence[bytes]) -> None:
        """See `Tier`."""
        pool = self._pool
        registered = set(pool.register(places, hashes))
        pool.free(places[::-1])
        if pool.events is not None and registered:
            new = [each for place, each in zip(places.tolist(), hashes, strict=True) if place in registered]
            pool.events.append(BlocksStored(b"".join(new), b"", b"", b"", HOST))

    def load(self, hashes: Sequence[bytes]) -> BlockIds:
        """See `Tier`."""
        places = self.match(hashes)
        self._pool.share(places)
        return places

    def release(self, places: BlockIds) -> None:
        """See `Tier`."""
        self._pool.free(places, elsewhere=True)

    def content(self, place: int) -> Content | None:
        """See `Tier`."""
        block_hash = self._pool.content(place)  # first: a thread may ask while the place gets other content
        return None if block_hash is None else Content(block_hash, self._num_contents[place])

    def drop(self, places: Sequence[int]) -> None:
        """See `Tier`."""
        self._pool.unregister(sorted(set(places)))

    def usage(self) -> int:
        """See `Tier`."""
        return self._pool.num_findable

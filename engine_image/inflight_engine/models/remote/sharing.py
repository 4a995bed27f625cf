"""Blocks of this server's model in its model cache, for peers."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_engine.models.remote.cached import CachedFile, CachedStore
from inflight_engine.models.remote.snapshot import Snapshot
from inflight_engine.models.remote.stores import PIECE


@dataclass(frozen=True, slots=True)
class SharedBlock:
    """A block that is whole, or whose checksums say that it is not.

    Attributes:
        checksums: hex, of its pages.
    """

    file: CachedFile
    number: int
    size: int
    checksums: str

    def part(self, start: int, count: int) -> bytes:
        """Return bytes from `start` on, at most `count`. Raises OSError: they cannot be read."""
        found = self.file.part(self.number, start, min(count, self.size - start))
        if not found:
            raise OSError("the model cache has lost a block")
        return found


class SharedBlocks:
    """The blocks of a snapshot; others of the cache are not shared.

    Args:
        snapshot: of a model that is read through a model cache.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        assert isinstance(snapshot.store, CachedStore)
        self._store = snapshot.store
        self._files = {snapshot.store.key(file): file for file in snapshot.shards}

    def find(self, entry: str, number: int) -> SharedBlock | None:
        """Return a block; None: it is not here.

        Raises:
            CacheError: the folder cannot be used.
            OSError: likewise.
        """
        file = self._files.get(entry)
        if file is None or number * PIECE >= file.size:
            return None
        cached = self._store.find(file)
        record = None if cached is None else cached.record(number)
        if cached is None or record is None:
            return None
        size = min(PIECE, file.size - number * PIECE)
        return SharedBlock(cached, number, size, record.hex())

"""Blocks that are to be read from the disk and written to it: which is next, and what comes of it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from inflight_engine.block_events import DISK, BlockEvent, BlocksRemoved, BlocksStored
from inflight_engine.cache.tiers import Content
from inflight_engine.request import Request
from inflight_engine.tier_loads import Done, HostBlocks, Read

log = logging.getLogger(__name__)

MOST_WRITES = 512
"""Blocks that wait to be written, at most; others are not written."""

_PAUSE_SECONDS = 10.0
"""Time without writes after one that failed."""

_WEIGHT = 0.2
"""Weight of the latest block in the running mean."""


class DamagedError(Exception):
    """A block is not what was written."""


class Store(Protocol):
    """Blocks by the hash of their content, the least recently used of which makes room for others."""

    def has(self, block_hash: bytes) -> bool:
        """Return whether a block is here."""

    def usage(self) -> int:
        """Return the number of blocks."""

    def write(self, block_hash: bytes, block: memoryview, checksum: int) -> bool:
        """Keep a block, which counts as used; returns False where it was here already.

        Args:
            checksum: signed, 64 bits; `read` returns it.

        Raises:
            OSError: it could not be written.
        """

    def read(self, block_hash: bytes, into: memoryview) -> int:
        """Read a block that is here, which counts as used; returns its checksum. One that cannot be read is dropped.

        Raises:
            KeyError: it is not here.
            DamagedError: it is not what was written; `into` has anything.
            OSError: it cannot be read.
        """

    def touch(self, block_hash: bytes) -> None:
        """Count a block as used, if it is here."""

    def drop(self, block_hash: bytes) -> None:
        """Forget a block, if it is here."""


class Job(NamedTuple):
    """Blocks to forget, blocks to count as used, then one read, or else the block of a place to write."""

    dropped: list[bytes]
    used: list[bytes]
    read: Read | None
    write: tuple[int, Content] | None


class DiskWork:
    """Writes what is given to it, and reads what is asked for, which goes first: one `Job` after the other. Other
    threads may ask for more meanwhile.

    A disk that fails costs what it has, and nothing else: what cannot be read is dropped, what cannot be written is
    not there, and without a store nothing is.

    Args:
        content: returns what a place has; None: nothing. Called by `do`.
        wake: called by `end` when results are there.
        events: make records of what is stored and lost.

    Attributes:
        num_stored, num_loaded: blocks written and read. num_failed: blocks that could not be read, or were not what
            was written. num_dropped: blocks that were not written, as too many waited or the disk failed.
        piece, seconds_per_block, read_at: as of `Reader`.
    """

    piece = 8

    def __init__(
        self,
        memory: HostBlocks,
        *,
        content: Callable[[int], Content | None],
        wake: Callable[[], None],
        events: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_stored = self.num_loaded = self.num_failed = self.num_dropped = 0
        self.seconds_per_block = self.read_at = 0.0
        self._memory = memory
        self._content = content
        self._wake = wake
        self._clock = clock
        self._store: Store | None = None
        self._results: deque[Done] = deque()
        self._events: deque[BlockEvent] | None = deque() if events else None
        self._reads: deque[Read] = deque()
        self._writes: deque[tuple[int, Content]] = deque()
        self._drops: deque[bytes] = deque()
        self._used: deque[bytes] = deque()
        self._work = threading.Condition()
        self._writes_from = 0.0
        self._block_from: float | None = None
        """Clock at which the block that is read or written was begun; None: none is."""

    @property
    def ready(self) -> bool:
        """Reads are done."""
        return bool(self._results)

    @property
    def num_reads(self) -> int:
        """Blocks that are to be read."""
        return sum(len(each.hashes) for each in list(self._reads))

    @property
    def busy(self) -> bool:
        """Blocks are to be read or written, or were read and not taken."""
        writing = self._store is not None and bool(self._writes)
        return writing or bool(self._reads or self._results)

    @property
    def stalled(self) -> float:
        """Seconds that the block that is read or written has taken so far; 0: none is."""
        started = self._block_from
        return 0.0 if started is None else self._clock() - started

    def finds(self, request: Request, block_hash: bytes) -> bool:
        """Return whether the disk has a block."""
        return self._store is not None and self._store.has(block_hash)

    def usage(self) -> int:
        """Return the number of blocks on the disk."""
        return 0 if self._store is None else self._store.usage()

    def store(self, places: Sequence[int], contents: Sequence[Content | None]) -> None:
        """Write blocks that were copied to places, as far as these have the same content then."""
        if self._store is None:
            return
        with self._work:
            room = MOST_WRITES - len(self._writes)
            pairs = zip(places, contents, strict=True)
            blocks = [(place, content) for place, content in pairs if content is not None]
            self._writes.extend(blocks[:room])
            self.num_dropped += len(blocks[room:])
            self._work.notify()

    def load(self, read: Read) -> None:
        """Read blocks to places that are held until `take` returns the result."""
        with self._work:
            if self._store is None:
                self._results.append(Done(read.number, []))
            else:
                self._reads.append(read)
                self._work.notify()

    def give_up(self) -> None:
        """Give up the reads that are not begun. Their results have no blocks."""
        with self._work:
            while len(self._reads) > 1:
                self._results.append(Done(self._reads.pop().number, []))

    def drop(self, hashes: Sequence[bytes]) -> None:
        """Forget blocks, before anything else is read."""
        with self._work:
            self._drops.extend(hashes)
            self._work.notify()

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Count blocks as used, as far as they are on the disk."""
        if self._store is not None:
            with self._work:
                self._used.extend(hashes)
                self._work.notify()

    def take(self) -> list[Done]:
        """Take the results that are there."""
        return [self._results.popleft() for _ in range(len(self._results))]

    def take_events(self) -> list[BlockEvent]:
        """Take the records since the last call."""
        return [] if self._events is None else [self._events.popleft() for _ in range(len(self._events))]

    def next(self) -> Job | None:
        """Take what is to be done next; None: nothing is. A read stays among those that are to be done until `end`."""
        with self._work:
            if not (self._drops or self._used or self._reads or self._writes):
                return None
            dropped = [self._drops.popleft() for _ in range(len(self._drops))]
            used = [self._used.popleft() for _ in range(len(self._used))]
            read = self._reads[0] if self._reads else None
            write = self._writes.popleft() if read is None and self._writes else None
        return Job(dropped, used, read, write)

    def do(self, store: Store, job: Job) -> Done | None:
        """Do what `next` has returned; returns the result of its read, if any, for `end`."""
        for block_hash in job.dropped:
            store.drop(block_hash)
        for block_hash in job.used:
            store.touch(block_hash)
        if job.read is not None:
            return Done(job.read.number, self._read(store, job.read))
        if job.write is not None:
            self._write(store, *job.write)
        return None

    def end(self, done: Done | None) -> None:
        """Hand out the result of `do`."""
        if done is not None:
            self._results.append(done)
            self._reads.popleft()
            self._wake()
        self._block_from = None

    def _read(self, store: Store, read: Read) -> list[int]:
        checksums: list[int] = []
        for block_hash, place in zip(read.hashes, read.places, strict=True):
            started = self._block_from = self._clock()
            try:
                checksums.append(store.read(block_hash, self._memory.row(place)))
            except KeyError:
                break  # It made room for another block meanwhile.
            except (DamagedError, OSError) as error:
                self.num_failed += 1
                log.warning("a block of the KV cache cannot be read from the disk: %s", error)
                break
            self.read_at = self._clock()
            seconds = self.read_at - started
            mean = self.seconds_per_block
            self.seconds_per_block = mean + _WEIGHT * (seconds - mean) if mean else seconds
            self.num_loaded += 1
        return checksums

    def _write(self, store: Store, place: int, content: Content) -> None:
        if self._clock() < self._writes_from:
            self.num_dropped += 1
            return
        block_hash = content.block_hash
        (checksum,) = self._memory.checksums([place])
        self._block_from = self._clock()
        try:
            if self._content(place) != content or not store.write(block_hash, self._memory.row(place), checksum):
                return
        except OSError as error:
            self.num_dropped += 1
            self._writes_from = self._clock() + _PAUSE_SECONDS
            log.warning("blocks of the KV cache cannot be written to the disk: %s", error.strerror or error)
            return
        if self._events is not None:
            self._events.append(BlocksStored(block_hash, b"", b"", b"", DISK))
        if self._content(place) != content:  # The place may have got something else while it was written.
            store.drop(block_hash)
            return
        self.num_stored += 1

    def _lost(self, block_hash: bytes) -> None:
        if self._events is not None:
            self._events.append(BlocksRemoved(block_hash, DISK))

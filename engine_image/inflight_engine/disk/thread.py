"""The thread that reads and writes blocks on the disk, so that no step waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from inflight_engine.block_events import DISK, BlockEvent, BlocksRemoved, BlocksStored
from inflight_engine.cache.tiers import Content
from inflight_engine.disk.store import DamagedError, DiskStore
from inflight_engine.request import Request
from inflight_engine.tier_loads import Done, HostBlocks, Read

log = logging.getLogger(__name__)

MOST_WRITES = 512
"""Blocks that wait to be written, at most; others are not written."""

_PAUSE_SECONDS = 10.0
"""Time without writes after one that failed."""

_WEIGHT = 0.2
"""Weight of the latest block in the running mean."""


class DiskThread:
    """Opens a store, then writes what is given to it, and reads what is asked for, which goes first.

    A disk that fails costs what it has, and nothing else: what cannot be read is dropped, what cannot be written is
    not there, and without a store nothing is.

    Args:
        open_store: called on the thread.
        content: returns what a place has; None: nothing. Called on the thread.
        wake: called on the thread when results are there.
        events: make records of what is stored and lost.

    Attributes:
        num_stored, num_loaded: blocks written and read. num_failed: blocks that could not be read, or were not what
            was written. num_dropped: blocks that were not written, as too many waited or the disk failed.
        piece, seconds_per_block, read_at: as of `Reader`.
    """

    piece = 8

    def __init__(
        self,
        open_store: Callable[[], DiskStore],
        memory: HostBlocks,
        *,
        content: Callable[[int], Content | None],
        wake: Callable[[], None],
        events: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_stored = self.num_loaded = self.num_failed = self.num_dropped = 0
        self.seconds_per_block = self.read_at = 0.0
        self._open_store = open_store
        self._memory = memory
        self._content = content
        self._wake = wake
        self._clock = clock
        self._store: DiskStore | None = None
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
        self._closed = False
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_open(self, seconds: float) -> bool:
        """Wait until blocks can be found, or it is known that there is no store; False: it takes longer."""
        return self._opened.wait(seconds)

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

    def close(self, seconds: float = 1.0) -> None:
        """End the thread after the block that it is at. Waits so long at most."""
        with self._work:
            self._closed = True
            self._work.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            store = self._open_store()
        except Exception as error:
            log.warning("the KV cache goes on without its disk: %s", error)
            self._opened.set()
            return
        store.lost = self._lost
        if self._events is not None and store.usage():
            self._events.append(BlocksStored(b"".join(store.hashes()), b"", b"", b"", DISK))
        log.info("the disk has %d blocks of the KV cache", store.usage())
        self._store = store
        self._opened.set()
        try:
            while self._work_once(store):
                pass
        except Exception:
            log.exception("the KV cache goes on without its disk")
        with self._work:
            self._store = None
            self._results.extend(Done(read.number, []) for read in self._reads)
            self._reads.clear()
        self._wake()
        store.close()

    def _work_once(self, store: DiskStore) -> bool:
        """Wait for something to do, and do it; False: the thread should end."""
        with self._work:
            while not (self._closed or self._drops or self._used or self._reads or self._writes):
                self._work.wait()
            if self._closed:
                return False
            dropped = [self._drops.popleft() for _ in range(len(self._drops))]
            used = [self._used.popleft() for _ in range(len(self._used))]
            read = self._reads[0] if self._reads else None
            write = self._writes.popleft() if read is None and self._writes else None
        for block_hash in dropped:
            store.drop(block_hash)
        for block_hash in used:
            store.touch(block_hash)
        if read is not None:
            done = Done(read.number, self._read(store, read))
            self._results.append(done)
            self._reads.popleft()
            self._wake()
        elif write is not None:
            self._write(store, *write)
        self._block_from = None
        return True

    def _read(self, store: DiskStore, read: Read) -> list[int]:
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

    def _write(self, store: DiskStore, place: int, content: Content) -> None:
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

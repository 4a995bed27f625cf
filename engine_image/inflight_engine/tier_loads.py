"""Requests that wait until blocks have come to host memory from behind it: from a disk, or another engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from inflight_contract.kv_blocks import KVSource
from inflight_engine.cache.block_pool import BlockIds
from inflight_engine.cache.offload import Offload
from inflight_engine.request import Request

_LEAST_PATIENCE = 0.1
_UNKNOWN_PATIENCE = 2.0
"""Seconds that a request waits, at least, and where nobody knows how long it would compute."""

_OLD_SECONDS = 60.0
"""Age from which the measured speed counts as unknown."""


class HostBlocks(Protocol):
    """The memory of the tier in host memory. Blocks are numbered by their places."""

    def row(self, place: int) -> memoryview:
        """Return the bytes of a block."""

    def checksums(self, places: Sequence[int]) -> list[int]:
        """Return the checksums of blocks, once what was to be copied there is there."""


class Read(NamedTuple):
    """Blocks to read, in their order, up to the first that cannot be. `source`: of the request; None: it has none."""

    number: int
    hashes: list[bytes]
    places: list[int]
    source: KVSource | None = None


class Done(NamedTuple):
    """The checksums of the blocks that were read of a `Read`: its leading ones."""

    number: int
    checksums: list[int]


class Reader(Protocol):
    """Reads blocks, in threads of its own.

    Attributes:
        piece: blocks of one read. What has come when a request is late is used.
        seconds_per_block: to read one, recently; 0: none was read yet.
        read_at: clock of the latest read.
    """

    piece: int
    seconds_per_block: float
    read_at: float

    def finds(self, request: Request, block_hash: bytes) -> bool:
        """Return whether a block of a request may be there."""

    @property
    def ready(self) -> bool:
        """Reads are done."""

    @property
    def num_reads(self) -> int:
        """Blocks that are to be read."""

    @property
    def busy(self) -> bool:
        """Blocks are to be read or written, or were read and not taken."""

    @property
    def stalled(self) -> float:
        """Seconds that the block that is read or written has taken so far; 0: none is."""

    def load(self, read: Read) -> None:
        """Read blocks to places that are held until `take` returns the result."""

    def give_up(self) -> None:
        """Give up the reads that are not begun. Their results have no blocks."""

    def take(self) -> list[Done]:
        """Take the results that are there."""


AnyReader = TypeVar("AnyReader", bound=Reader)


class Fetches(Protocol):
    """The scheduler, for what comes from behind host memory."""

    def fetch(self, number: int, hashes: Sequence[bytes]) -> tuple[list[int], BlockIds]:
        """See `Offload.fetch`."""

    def fetched(self, number: int, count: int) -> None:
        """See `Offload.fetched`."""


@dataclass(slots=True)
class _Waiting:
    """A request, the reads that it waits for, and the clock at which it waits no longer."""

    request: Request
    numbers: set[int]
    until: float


class TierLoads(Generic[AnyReader]):
    """Reads what new requests find, where that takes less time than computing it, and holds them until it is in host
    memory, or for the time that computing it would take, but no longer than their deadlines allow.

    Args:
        offload: the tier in host memory.
        numbers: gives each read a number of its own.
        device_has: returns how many hashes, from the first on, the device has.
        longest_wait: returns how many seconds a request may wait at a clock.
        set_checksums: called with places and the checksums of what they have now.
        wake_after: called with the seconds after which a request waits no longer.

    Attributes:
        reader: reads what they wait for.
        num_slower, num_stalled, num_full, num_late: requests that compute blocks which are there: as that takes less
            time, as the disk hangs, as host memory waits for as much as it may, and as not all came in time.
    """

    def __init__(
        self,
        reader: AnyReader,
        offload: Offload,
        fetches: Fetches,
        *,
        numbers: Iterator[int],
        device_has: Callable[[Sequence[bytes]], int],
        longest_wait: Callable[[Request, float], float],
        set_checksums: Callable[[Sequence[int], Sequence[int]], None],
        block_size: int,
        wake_after: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_slower = self.num_stalled = self.num_full = self.num_late = 0
        self.reader = reader
        self._offload = offload
        self._fetches = fetches
        self._device_has = device_has
        self._longest_wait = longest_wait
        self._set_checksums = set_checksums
        self._block_size = block_size
        self._wake_after = wake_after
        self._clock = clock
        self._waiting: dict[int, _Waiting] = {}
        self._unsent: list[Read] = []
        self._reads: dict[int, Read] = {}
        self._number_of: dict[bytes, int] = {}
        """The read that brings a block."""
        self._numbers = numbers

    @property
    def ready(self) -> bool:
        """There is something to `take`, or to `send`."""
        if self._unsent or self.reader.ready:
            return True
        return bool(self._waiting) and min(each.until for each in self._waiting.values()) <= self._clock()

    @property
    def busy(self) -> bool:
        """Blocks are on their way between host memory and the disk."""
        return bool(self._waiting or self._unsent or self._reads) or self.reader.busy

    @property
    def wait_seconds(self) -> float:
        """Predicted seconds until no request waits any more; 0: none does."""
        if not self._waiting:
            return 0.0
        latest = max(each.until for each in self._waiting.values()) - self._clock()
        return max(0.0, min(latest, self._seconds(0) + self.reader.stalled))

    def put(self, request: Request) -> bool:
        """Take a request whose blocks are hashed, if it should wait; False: it finds nothing, or is faster without
        it."""
        size = self._block_size
        hashes = request.block_hashes[: (request.num_tokens - 1) // size]
        num_cached = self._device_has(hashes)
        numbers: set[int] = set()
        known: list[bytes] = []
        missing: list[bytes] = []
        for block_hash in hashes[num_cached:]:
            if self._offload.has(block_hash):
                known.append(block_hash)
            elif block_hash in self._number_of:
                numbers.add(self._number_of[block_hash])
            elif self.reader.finds(request, block_hash):
                missing.append(block_hash)
            else:
                break
        num_loads = len(missing) + sum(len(self._reads[number].hashes) for number in numbers)
        if not num_loads:
            return False
        num_before = (num_cached + len(known)) * size
        computing = self._offload.seconds_to_compute(num_loads * size, num_before)
        now = self._clock()
        patience = _UNKNOWN_PATIENCE if computing is None else max(_LEAST_PATIENCE, computing)
        patience = min(patience, self._longest_wait(request, now))
        if self.reader.stalled > patience:
            self.num_stalled += 1
            return False
        if not self._offload.pays(num_loads * size, num_before, self._seconds(len(missing))):
            self.num_slower += 1
            return False
        for first in range(0, len(missing), self.reader.piece):
            piece, number = missing[first : first + self.reader.piece], next(self._numbers)
            # What is in host memory counts as used: it must not make room.
            found = known + piece if first == 0 else piece
            indices, places = self._fetches.fetch(number, found)
            read = Read(number, [found[index] for index in indices], places.tolist(), request.kv_source)
            if not read.places:  # host memory waits for as much as it may
                self._fetches.fetched(read.number, 0)
                break
            self._reads[read.number] = read
            self._unsent.append(read)
            self._number_of |= dict.fromkeys(read.hashes, read.number)
            numbers.add(read.number)
        if not numbers:
            self.num_full += 1
            return False
        self._waiting[request.request_id] = _Waiting(request, numbers, now + patience)
        self._wake_after(patience)
        return True

    def send(self) -> None:
        """Begin the reads. Call it when no step is in flight that was launched before their `put`: it may copy to or
        from the same places."""
        for read in self._unsent:
            self.reader.load(read)
        self._unsent.clear()

    def take(self) -> list[Request]:
        """Take in what has come; returns the requests that need to wait no longer."""
        for done in self.reader.take():
            read, count = self._reads.pop(done.number), len(done.checksums)
            for block_hash in read.hashes:
                del self._number_of[block_hash]
            self._set_checksums(read.places[:count], done.checksums)
            self._fetches.fetched(done.number, count)
            for each in self._waiting.values():
                each.numbers.discard(done.number)
        now = self._clock()
        ready = [each.request for each in self._waiting.values() if not each.numbers or each.until <= now]
        for request in ready:
            self.num_late += bool(self._waiting.pop(request.request_id).numbers)
        if self._reads and not self._waiting and self.reader.stalled > _LEAST_PATIENCE:
            self.reader.give_up()  # The places of these reads would be held as long as the disk hangs.
        return ready

    def cancel(self, request_id: int) -> bool:
        """Forget a request; False: there is none of that id. What it waits for comes all the same."""
        return self._waiting.pop(request_id, None) is not None

    def _seconds(self, num_blocks: int) -> float:
        """Predict how long it takes until so many more blocks are read."""
        reader = self.reader
        if self._clock() - reader.read_at > _OLD_SECONDS:
            return 0.0
        return (reader.num_reads + num_blocks) * reader.seconds_per_block

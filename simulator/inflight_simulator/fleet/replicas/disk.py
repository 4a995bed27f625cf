"""A replica's disk on the fleet's clock: decisions by the engine's code, durations by the replica's rates."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from inflight_engine.cache.prefix import hash_blocks
from inflight_engine.cache.tiers import Content
from inflight_engine.disk.work import DiskWork
from inflight_engine.request import Request
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.tier_loads import Done, TierLoads
from inflight_simulator.fleet.config import ReplicaModel


class _NoBytes:
    """Host memory of which only the places count; see `HostBlocks`."""

    def row(self, place: int) -> memoryview:
        return memoryview(b"")

    def checksums(self, places: Sequence[int]) -> list[int]:
        return [0] * len(places)


class Device:
    """A disk with names of blocks and without bytes; see `Store` of the engine.

    Attributes:
        clock: when it has done all that was asked for, in seconds.
    """

    def __init__(self, model: ReplicaModel) -> None:
        self.clock = 0.0
        self._num_blocks = model.disk_tokens // model.block_size
        assert model.disk_read_token_s is not None
        assert model.disk_write_token_s is not None
        self._read_s = model.block_size * model.disk_read_token_s
        self._write_s = model.block_size * model.disk_write_token_s
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        """Least recently used first."""

    def has(self, block_hash: bytes) -> bool:
        return block_hash in self._blocks

    def usage(self) -> int:
        return len(self._blocks)

    def write(self, block_hash: bytes, block: memoryview, checksum: int) -> bool:
        known = block_hash in self._blocks
        if not known:
            self.clock += self._write_s
            if len(self._blocks) == self._num_blocks:
                self._blocks.popitem(last=False)
            self._blocks[block_hash] = None
        self._blocks.move_to_end(block_hash)
        return not known

    def read(self, block_hash: bytes, into: memoryview) -> int:
        self._blocks.move_to_end(block_hash)
        self.clock += self._read_s
        return 0

    def touch(self, block_hash: bytes) -> None:
        if block_hash in self._blocks:
            self._blocks.move_to_end(block_hash)

    def drop(self, block_hash: bytes) -> None:
        self._blocks.pop(block_hash, None)


class SimulatedDisk(DiskWork):
    """Does one job after the other, without a thread. What a job does is there when it begins: only its results, and
    what is asked for next, come at its end.

    Attributes:
        now: time of the last `advance`, in seconds.
    """

    def __init__(self, device: Device, content: Callable[[int], Content | None]) -> None:
        super().__init__(_NoBytes(), content=content, wake=lambda: None, clock=lambda: device.clock)
        self._store = self._device = device
        self._under_way: Done | None = None
        self.now = 0.0

    def advance(self, now: float) -> None:
        """Do what is done by now, and begin what is next. Call it before anything that happens now changes what is to
        be done or what host memory has, and after it where `next_s` matters."""
        device, self.now = self._device, now
        while device.clock <= now:
            self.end(self._under_way)
            self._under_way = None
            job = self.next()
            if job is None:
                device.clock = now
                return
            self._under_way = self.do(device, job)

    @property
    def stalled(self) -> float:
        """See `DiskWork`: the device's clock is at the end of what it does."""
        started = self._block_from
        return 0.0 if started is None else max(0.0, self.now - started)

    @property
    def next_s(self) -> float:
        """Time at which a read may be done; infinite: none is asked for."""
        return self._device.clock if self.num_reads else math.inf


class DiskTier:
    """Requests of a replica that wait for its disk, which gets what its scheduler stores in host memory."""

    def __init__(self, model: ReplicaModel, scheduler: Scheduler) -> None:
        offload = scheduler.offload
        self._block_size = model.block_size
        self._late_s: list[float] = []
        """Heap of the times at which requests wait no longer."""
        disk = self._disk = SimulatedDisk(Device(model), offload.content)
        offload.stored, offload.used = self._disk.store, self._disk.touch
        self._loads = TierLoads(
            self._disk,
            offload,
            offload,
            numbers=itertools.count(),
            device_has=lambda hashes: len(scheduler.running.pool.match(hashes)),
            longest_wait=scheduler.longest_wait,
            set_checksums=lambda places, checksums: None,
            block_size=model.block_size,
            wake_after=lambda seconds: heappush(self._late_s, disk.now + seconds),
            clock=lambda: disk.now,
        )

    def advance(self, now: float) -> None:
        """Set the time, before anything else that happens then."""
        self._disk.advance(now)
        while self._late_s and self._late_s[0] <= now:
            heappop(self._late_s)

    def put(self, request: Request) -> bool:
        """Take a new request, if it should wait."""
        hash_blocks(request, request.num_tokens, self._block_size)
        return self._loads.put(request)

    def take(self) -> list[Request]:
        """Begin the reads of new requests; returns the requests that need to wait no longer."""
        self._loads.send()
        self._disk.advance(self._disk.now)
        return self._loads.take()

    @property
    def next_s(self) -> float:
        """Time at which a request may need to wait no longer; infinite: there is none."""
        return min(self._disk.next_s, self._late_s[0] if self._late_s else math.inf)

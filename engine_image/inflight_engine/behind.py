"""Stores behind host memory: a disk, and other engines of the service."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from inflight_engine.block_events import BlockEvent
from inflight_engine.disk.opening import HostMemory, open_disk
from inflight_engine.disk.thread import DiskThread
from inflight_engine.peers.reader import PeerReader
from inflight_engine.request import Request
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.tier_loads import AnyReader, Fetches, TierLoads
from inflight_settings.engine import EngineConfig


class Behind:
    """Holds requests until their blocks have come. The disk goes first.

    Attributes:
        disk, peers: None: there are none.
    """

    def __init__(self, disk: TierLoads[DiskThread] | None, peers: TierLoads[PeerReader] | None) -> None:
        self.disk = disk
        self.peers = peers
        self._loads: list[TierLoads[Any]] = [each for each in (disk, peers) if each is not None]

    @property
    def ready(self) -> bool:
        """There is something to `take`, or to `send`."""
        return any(each.ready for each in self._loads)

    @property
    def busy(self) -> bool:
        """Blocks are on their way."""
        return any(each.busy for each in self._loads)

    def put(self, request: Request) -> bool:
        """See `TierLoads.put`."""
        return any(each.put(request) for each in self._loads)

    def send(self) -> None:
        """See `TierLoads.send`."""
        for each in self._loads:
            each.send()

    def take(self) -> list[Request]:
        """See `TierLoads.take`."""
        return [request for each in self._loads for request in each.take()]

    def cancel(self, request_id: int) -> bool:
        """See `TierLoads.cancel`."""
        return any(each.cancel(request_id) for each in self._loads)

    def take_events(self) -> list[BlockEvent]:
        """Take the records of the disk since the last call."""
        return [] if self.disk is None else self.disk.reader.take_events()

    def close(self) -> None:
        if self.disk is not None:
            self.disk.reader.close()
        if self.peers is not None:
            self.peers.reader.close()

    def stats(self) -> dict[str, Any]:
        """Return its fields of `StepStats`."""
        stats: dict[str, Any] = {}
        if self.disk is not None:
            loads, thread = self.disk, self.disk.reader
            stats |= {
                "num_disk_blocks": thread.usage(),
                "num_disk_stored": thread.num_stored,
                "num_disk_loaded": thread.num_loaded,
                "num_disk_failed": thread.num_failed,
                "num_disk_dropped": thread.num_dropped,
                "disk_seconds_per_block": thread.seconds_per_block,
                "disk_wait_seconds": loads.wait_seconds,
                "num_disk_slower": loads.num_slower,
                "num_disk_stalled": loads.num_stalled,
                "num_disk_full": loads.num_full,
                "num_disk_late": loads.num_late,
            }
        if self.peers is not None:
            stats |= {
                "num_peer_loaded": self.peers.reader.num_loaded,
                "num_peer_failed": self.peers.reader.num_failed,
                "num_peer_late": self.peers.num_late,
                "peer_seconds_per_block": self.peers.reader.seconds_per_block,
            }
        return stats


def make_behind(
    config: EngineConfig,
    info: RunnerInfo,
    memory: HostMemory,
    scheduler: Scheduler,
    wake: Callable[[], None],
    fetches: Fetches,
) -> Behind:
    """Make what is behind host memory. Waits for the disk, but not for long."""
    numbers = itertools.count()

    def wake_after(seconds: float) -> None:
        timer = threading.Timer(seconds, wake)
        timer.daemon = True
        timer.start()

    def loads(reader: AnyReader) -> TierLoads[AnyReader]:
        return TierLoads(
            reader,
            scheduler.offload,
            fetches,
            numbers=numbers,
            device_has=lambda hashes: len(scheduler.running.pool.match(hashes)),
            longest_wait=scheduler.longest_wait,
            set_checksums=memory.set_checksums,
            block_size=info.block_size,
            wake_after=wake_after,
        )

    disk = loads(open_disk(config, info, memory, scheduler, wake)) if config.disk_space else None
    peers = loads(PeerReader(memory, memory.block_bytes, wake=wake)) if info.kv_identity else None
    return Behind(disk, peers)

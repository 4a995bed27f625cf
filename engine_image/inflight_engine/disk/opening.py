"""Makes the tier on a disk from the engine's configuration."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from inflight_contract import admin_token
from inflight_contract.errors import ApiError
from inflight_engine.disk.store import DiskStore, derive_key
from inflight_engine.disk.thread import DiskThread
from inflight_engine.models.checkpoints.source import resolve_configured
from inflight_engine.models.remote.snapshot import digest
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_engine.tier_loads import HostBlocks
from inflight_settings.engine import EngineConfig

log = logging.getLogger(__name__)

_READY_SECONDS = 2.0
"""Time that the engine waits for its disk, at most, before it is ready."""

_WEIGHTS = ("config.json", "*.safetensors", "*.gguf")
"""Files of a model that its keys and values depend on."""


class HostMemory(HostBlocks, Protocol):
    """The memory of the tier before the disk.

    Attributes:
        block_bytes: of a block.
    """

    block_bytes: int

    def set_checksums(self, places: Sequence[int], checksums: Sequence[int]) -> None:
        """Take the checksums of what was put to places."""


def open_disk(
    config: EngineConfig, info: RunnerInfo, memory: HostMemory, scheduler: Scheduler, wake: Callable[[], None]
) -> DiskThread:
    """Make the tier, which opens its store in the background. Waits for that, so that the first turns of conversations
    after a restart find their blocks, but not for long."""
    assert config.disk_path is not None
    offload, folder = scheduler.offload, Path(config.disk_path)

    def open_store() -> DiskStore:
        key = derive_key(_secret(), _digest_of_weights(config), info.kv_identity)
        return DiskStore(folder, config.disk_space, memory.block_bytes, key)

    events = scheduler.running.pool.events is not None
    thread = DiskThread(open_store, memory, content=offload.content, wake=wake, events=events)
    offload.stored, offload.used, offload.damaged = thread.store, thread.touch, thread.drop
    thread.start()
    if not thread.wait_open(_READY_SECONDS):
        log.info("the engine is ready before the disk of its KV cache, which takes over %.0f s", _READY_SECONDS)
    return thread


def _secret() -> bytes:
    try:
        return admin_token.configured()
    except ApiError:
        log.warning("blocks on the disk are encrypted with a key that is no secret: the engine has no admin token")
        return b""


def _digest_of_weights(config: EngineConfig) -> str:
    """Return a digest of the weights. Reads all of them: seconds.

    Raises:
        ValueError: they are on a server that does not say which version it has.
    """
    files = resolve_configured(config)
    shards = () if files.remote is None else files.remote.shards
    if any(shard.etag is None for shard in shards):
        raise ValueError(f"{config.model} has no ETags, so its weights may change without notice")
    paths = [files.gguf] if files.gguf is not None else [each for name in _WEIGHTS for each in files.folder.glob(name)]
    content = hashlib.sha256(digest(shards).encode())
    for path in sorted(paths):
        with path.open("rb") as file:
            content.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return content.hexdigest()

"""Makes the tier on a disk from the engine's configuration."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from inflight_contract import admin_token
from inflight_contract.errors import ApiError
from inflight_engine.disk.loads import DiskLoads, Fetches
from inflight_engine.disk.store import DiskStore, derive_key
from inflight_engine.disk.thread import DiskThread, HostBlocks
from inflight_engine.models.checkpoints.source import resolve_configured
from inflight_engine.models.remote.snapshot import digest
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.engine import EngineConfig

log = logging.getLogger(__name__)

_READY_SECONDS = 2.0
"""Time that the engine waits for its disk, at most, before it is ready."""

_WEIGHTS = ("config.json", "*.safetensors", "*.gguf")
"""Files of a model that its keys and values depend on."""


class HostMemory(HostBlocks, Protocol):
    """The memory of the tier before the disk.

    Attributes:
        block_bytes: of a block. identity: what the bytes of blocks depend on beside tokens, weights and settings.
    """

    block_bytes: int
    identity: str

    def set_checksums(self, places: Sequence[int], checksums: Sequence[int]) -> None:
        """Take the checksums of what was put to places."""


def make_disk(
    config: EngineConfig,
    info: RunnerInfo,
    memory: HostMemory,
    scheduler: Scheduler,
    wake: Callable[[], None],
    fetches: Fetches,
) -> DiskLoads:
    """Make the tier, which opens its store in the background. Waits for that, so that the first turns of conversations
    after a restart find their blocks, but not for long."""
    assert config.disk_path is not None
    offload, folder = scheduler.offload, Path(config.disk_path)

    def open_store() -> DiskStore:
        key = derive_key(_secret(), *_identity(config, info), memory.identity)
        return DiskStore(folder, config.disk_space, memory.block_bytes, key)

    events = scheduler.running.pool.events is not None
    thread = DiskThread(open_store, memory, content=offload.content, wake=wake, events=events)
    loads = DiskLoads(
        thread,
        offload,
        fetches,
        device_has=lambda hashes: len(scheduler.running.pool.match(hashes)),
        set_checksums=memory.set_checksums,
        block_size=info.block_size,
        wake=wake,
    )
    thread.start()
    if not thread.wait_open(_READY_SECONDS):
        log.info("the engine is ready before the disk of its KV cache, which takes over %.0f s", _READY_SECONDS)
    return loads


def _secret() -> bytes:
    try:
        return admin_token.configured()
    except ApiError:
        log.warning("blocks on the disk are encrypted with a key that is no secret: the engine has no admin token")
        return b""


def _identity(config: EngineConfig, info: RunnerInfo) -> list[str]:
    """Return what keys and values depend on beside tokens, with a digest of the weights. Reads all of them: seconds.

    Raises:
        ValueError: they are on a server that does not say which version it has.
    """
    files = resolve_configured(config)
    shards = () if files.remote is None else files.remote.shards
    if any(shard.etag is None for shard in shards):
        raise ValueError(f"{config.model} has no ETags, so its weights may change without notice")
    paths = [files.gguf] if files.gguf is not None else [each for name in _WEIGHTS for each in files.folder.glob(name)]
    content = hashlib.sha256()
    for path in sorted(paths):
        with path.open("rb") as file:
            content.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return [
        content.hexdigest(),
        digest(shards),
        version("inflight"),
        info.device.partition(":")[0],
        info.dtype,
        info.attention_backend,
        str(info.block_size),
        str(info.kv_bytes_per_token),
        config.quantization,
        config.kv_cache_dtype,
        str(config.batch_invariant),
    ]

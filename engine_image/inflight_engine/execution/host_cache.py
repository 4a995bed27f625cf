"""Host memory for keys and values that leave the KV cache: copied out of it, and back in later."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from inflight_engine.execution.attention.base import AttentionBackend
from inflight_engine.execution.block_copies import DirectCopies, StagedCopies
from inflight_engine.execution.memory.kv_size import KVCacheSizeError
from inflight_engine.execution.memory.zeros import TouchedAhead, give_back, zeros
from inflight_engine.models.parallel import ALONE, Parallel
from inflight_engine.output import SharedBlocks

_READ_BYTES = 8 << 20
"""Host memory for blocks that other engines read."""
_MEASURED_BLOCKS = 16
_MEASURED_COPIES = 3


class HostCache:
    """Blocks in host memory, and the copies between them and the blocks of an attention backend.

    For a GPU the memory is pinned, so copies run at the bus's full speed, and the host waits for none of them. It is
    registered rather than taken from torch's allocator for pinned memory, which rounds sizes up to a power of two.

    Args:
        num_blocks: 0 for none.
        block_size: tokens in a block.
        block_bytes: bytes of a block over all layers.
        device: device of the cache of `attention`.
        parallel: the runners that hold the other parts of each block.

    Raises:
        KVCacheSizeError: the system does not let this much memory be pinned.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        block_bytes: int,
        device: torch.device,
        attention: AttentionBackend,
        parallel: Parallel = ALONE,
    ) -> None:
        self.num_blocks = num_blocks
        self._block_size = block_size
        self._device = device
        self._parallel = parallel
        self.block_bytes = block_bytes
        self._file: int | None = None
        self._num_read = max(1, _READ_BYTES // block_bytes) if num_blocks else 0
        self._blocks = zeros((num_blocks + self._num_read, block_bytes), torch.uint8, torch.device("cpu"))
        if num_blocks and device.type == "cuda":
            _pin(self._blocks)
            # Not at exit: the driver takes everything back by itself then, and may be gone already.
            weakref.finalize(self, _unpin, self._blocks).atexit = False
        self._touched: TouchedAhead | None = None
        self._rows = self._blocks.numpy()
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        copies = StagedCopies if device.type == "cuda" else DirectCopies
        self._copies = copies(attention.blocks(), self._blocks)

    def copy_out(self, block_ids: Sequence[int], host_block_ids: Sequence[int]) -> None:
        """Copy whole blocks of the KV cache, over all layers, to host blocks, one to one."""
        self._copies.copy_out(block_ids, host_block_ids)

    def copy_in(self, copies: Sequence[tuple[Sequence[int], Sequence[int]]]) -> torch.Tensor:
        """Copy host blocks back into the KV cache, one to one.

        Args:
            copies: (host blocks, blocks) of each request.

        Returns:
            float32 [len(copies)], on the device: how many blocks of each, of any rank, are not what was copied out.
        """
        num_damaged = torch.stack([self._copies.copy_in(places, blocks) for places, blocks in copies])
        return self._parallel.all_reduce(num_damaged.float())

    def share(self, block_ids: Sequence[int], host_block_ids: Sequence[int]) -> SharedBlocks:
        """See `StepExecutor.share_blocks`."""
        copies = range(self.num_blocks, self.num_blocks + min(len(block_ids), self._num_read))
        self.copy_out(block_ids[: len(copies)], copies)
        places = [*copies, *host_block_ids[: self._num_read - len(copies)]]
        checksums = self.checksums(places)
        if self._file is None:
            self._file = os.memfd_create("inflight-kv-blocks")
        num_bytes = os.pwritev(self._file, [self.row(place) for place in places], 0)
        return SharedBlocks(f"/proc/{os.getpid()}/fd/{self._file}", num_bytes, checksums)

    def row(self, place: int) -> memoryview:
        """Return the bytes of a host block."""
        return memoryview(self._rows[place])

    def checksums(self, places: Sequence[int]) -> list[int]:
        """Return the checksums of host blocks, once all that was copied out is there; from any thread."""
        assert self._copies.checksums is not None
        if self._device.type != "cuda":
            return self._copies.checksums.of(places)
        with torch.cuda.stream(self._side):
            self._copies.settle()
            return self._copies.checksums.of(places)

    def set_checksums(self, places: Sequence[int], checksums: Sequence[int]) -> None:
        """Take the checksums of what was put into host blocks by others."""
        if self._copies.checksums is not None and len(places):
            self._copies.checksums.set(places, checksums)

    def measure_copy_rate(self, num_device_blocks: int) -> float:
        """Tokens a second whose keys and values can be copied one way; takes milliseconds.

        Overwrites the first few blocks on both sides with zeros, so it belongs before the first step.
        """
        blocks = range(min(_MEASURED_BLOCKS, self.num_blocks, num_device_blocks))
        # Memory that nothing was written to yet is read from one page of zeros, faster than any other memory.
        self._copies.copy_in(blocks, blocks)
        fastest = min(self._seconds_to_copy_out(blocks) for _ in range(_MEASURED_COPIES))
        return len(blocks) * self._block_size / fastest

    def touch_ahead(self) -> None:
        """Begin to take memory for a CPU's cache from the system, or copies would wait for it. Call it when no step and
        no copy is timed."""
        if self.num_blocks and self._device.type == "cpu":
            self._touched = TouchedAhead(self._blocks)

    def free(self) -> None:
        """Give the memory back; the blocks are zeros then. For a CPU's cache: what is pinned cannot be given back."""
        if self._touched is not None:
            self._touched.stop()
        give_back(self._blocks)

    def _seconds_to_copy_out(self, blocks: Sequence[int]) -> float:
        self._synchronize()
        started = time.perf_counter()
        self.copy_out(blocks, blocks)
        self._synchronize()
        return time.perf_counter() - started

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _pin(blocks: torch.Tensor) -> None:
    portable = 1  # cudaHostRegisterPortable: pinned for all devices
    error = int(_cudart().cudaHostRegister(blocks.data_ptr(), blocks.nbytes, portable))
    if error != 0:
        raise KVCacheSizeError(
            f"{blocks.nbytes} bytes of host memory for swap_space cannot be pinned (CUDA error {error}); "
            "lower swap_space or raise the limit on locked memory"
        )


def _unpin(blocks: torch.Tensor) -> None:
    _cudart().cudaHostUnregister(blocks.data_ptr())

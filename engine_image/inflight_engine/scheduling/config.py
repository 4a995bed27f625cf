"""Configuration of the scheduler, fixed at start."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_settings.limits import Limits
from inflight_settings.scheduling import SchedulingSettings


@dataclass(frozen=True, slots=True)
class SchedulerConfig(SchedulingSettings):
    """Settings of the scheduler, and sizes of the engine.

    Attributes:
        capacity: highest live limits; the slot table has `capacity.max_num_seqs` rows.
        num_blocks, block_size: size of the KV cache, and of a block in tokens.
        max_model_len: longest request, prompt plus output, in tokens.
        num_host_blocks: blocks of host memory behind the KV cache; 0: none.
    """

    capacity: Limits
    num_blocks: int
    block_size: int
    max_model_len: int
    num_host_blocks: int = 0

    @property
    def has_tier(self) -> bool:
        """Blocks that the prefix cache evicts go to host memory."""
        return self.num_host_blocks > 0 and self.keeps_evicted

"""Interface of the runner for the engine's loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inflight_engine.output import SharedBlocks, StepOutput
from inflight_engine.scheduling.plan import StepPlan


class StepExecutor(Protocol):
    """Computes step plans.

    Attributes:
        lookahead: whether one more step may be launched before the previous one is collected. Its decodes then go on
            from tokens that only the runner knows yet.
    """

    lookahead: bool

    def launch(self, plan: StepPlan) -> None:
        """Begin to compute a step; steps are computed in the order of their launches.

        Raises:
            MemoryError: there was no memory for it, nor for a part of it.
        """

    def collect(self) -> StepOutput:
        """Wait for the oldest step that is launched and not collected. One whose launch or collection raised is
        gone: neither it nor a step launched after it is collected."""

    def share_blocks(self, block_ids: Sequence[int], host_block_ids: Sequence[int]) -> SharedBlocks:
        """Write the leading blocks of these, first of the KV cache and then of host memory, as many as there is room
        for, to a file in memory, after all steps that are launched. The next call overwrites them."""

    def free_cache(self) -> None:
        """Give the memory of the KV cache, and of the tier behind it in host memory, back to the system. Blocks hold
        nothing afterwards, and memory comes back as steps write to them. Call it between steps, where
        `RunnerInfo.can_sleep`."""

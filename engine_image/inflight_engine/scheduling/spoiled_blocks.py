"""Which blocks do not hold what the prefix cache says, after chunks of a plan in flight were not computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inflight_engine.scheduling.plan import StepPlan


class SpoiledBlocks:
    """Follows the plans in flight, older first. A chunk that was not computed spoils the blocks that its plan made
    findable. So does whatever its slot computes later, and each slot that starts with a spoiled block.

    Attributes:
        blocks: spoiled ones that can be found.
    """

    def __init__(self, block_size: int) -> None:
        self.blocks: set[int] = set()
        self._block_size = block_size
        self._slots: set[int] = set()
        """That compute garbage."""

    def follow(
        self, plan: StepPlan, registered: Mapping[int, Sequence[int]], failed_slots: Sequence[int] = ()
    ) -> list[int]:
        """Take in the next plan.

        Args:
            registered: by slot, the blocks that the plan made findable.
            failed_slots: whose chunk in it was not computed.

        Returns:
            Other slots that start with a spoiled block.
        """
        self._slots.difference_update(plan.releases)
        self._slots.update(failed_slots)
        if plan.growth is not None:
            self.blocks.difference_update(plan.growth.block_ids.tolist())
        misled = []
        for slot in self._slots - {start.slot for start in plan.starts}:
            self.blocks.update(registered.get(slot, ()))
        for start in plan.starts:
            # The first are shared or copied from host memory.
            num_there = start.num_computed_tokens // self._block_size
            block_ids = start.block_ids.tolist()
            there, fresh = set(block_ids[:num_there]), block_ids[num_there:]
            if start.host_block_ids:
                fresh = block_ids
            elif start.slot not in self._slots and not self.blocks.isdisjoint(there):
                self._slots.add(start.slot)
                misled.append(start.slot)
            self.blocks.difference_update(fresh)
            if start.slot in self._slots:
                self.blocks.update(block for block in registered.get(start.slot, ()) if block not in there)
        return misled

"""Work of a planned step, in the terms of the cost model."""

from __future__ import annotations

from inflight_cost.model import StepWork, attended_tokens
from inflight_engine.scheduling.plan import StepPlan


def work_of(plan: StepPlan, num_attended: int, block_size: int) -> StepWork:
    """Return the work of a plan.

    Args:
        num_attended: tokens whose keys and values its decodes read.
        block_size: tokens in a block.
    """
    prefill_tokens = prefill_context_tokens = 0
    for chunk in plan.prefills:
        prefill_tokens += chunk.length
        prefill_context_tokens += attended_tokens(chunk.start, chunk.length)
    copied_blocks = 0
    if plan.stores is not None:
        copied_blocks += len(plan.stores.block_ids)
    for start in plan.starts:
        copied_blocks += len(start.host_block_ids)
    copied_tokens = copied_blocks * block_size
    return StepWork(len(plan.decode_slots), prefill_tokens, num_attended, prefill_context_tokens, copied_tokens)

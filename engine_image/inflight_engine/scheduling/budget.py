"""The token budget of a step: decodes come first, oldest first, then unfinished prefills."""

from __future__ import annotations

import numpy as np

from inflight_engine.scheduling.plan import PrefillChunk
from inflight_engine.scheduling.running import Running


def fit_decodes(running: Running, budget: int) -> None:
    """Let the oldest requests decode, as many as the budget has tokens, and pause the others."""
    decodes = running.decodes
    decodes.settle()
    if not running.paused and len(decodes.slots) <= budget:
        return
    slots = np.array([*decodes.slots.tolist(), *running.paused], np.intp)
    oldest_first = slots[np.argsort(running.table.order[slots])].tolist()
    for slot in oldest_first[budget:]:
        if slot not in running.paused:
            running.pause(slot)
    for slot in oldest_first[:budget]:
        if slot in running.paused:
            running.resume(slot)
    decodes.settle()


def plan_prefills(running: Running, budget: int) -> list[PrefillChunk]:
    """Plan chunks for extended requests, which would decode otherwise, then for unfinished prefills, in order of
    admission, until the budget is spent."""
    chunks: list[PrefillChunk] = []
    for slot in (*running.extended, *running.prefilling):
        if budget == 0:
            break
        chunks.append(running.plan_chunk(slot, budget))
        budget -= chunks[-1].length
    return chunks


def runs_out(running: Running, budget: int) -> bool:
    """Tell whether a request is paused, or would have to be paused or preempted in the next step."""
    running.decodes.settle()
    if running.paused or len(running.decodes.slots) > budget:
        return True
    return len(running.decodes.growing()) > running.pool.num_free

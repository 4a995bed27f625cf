"""Forward passes of a step plan: one for all, or separate ones for prefills."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from inflight_cost.model import attended_tokens
from inflight_engine.scheduling.plan import PrefillChunk, Slots, StepPlan

_NO_SLOTS: Slots = np.empty(0, np.intp)


class Pass(NamedTuple):
    """A forward pass: these slots decode, these chunks are computed, and it takes the time of a step."""

    decode_slots: Slots
    prefills: tuple[PrefillChunk, ...]


def prefill_work(chunks: Iterable[PrefillChunk]) -> tuple[int, int]:
    """Prompt tokens that the chunks compute, and tokens that those attend to, each counted once for each of them."""
    tokens = context = 0
    for chunk in chunks:
        tokens += chunk.length
        context += attended_tokens(chunk.start, chunk.length)
    return tokens, context


Passes = Callable[[StepPlan], list[Pass]]


def mixed(plan: StepPlan) -> list[Pass]:
    """Returns a single pass for decodes and prefills, as in the engine (chunked prefill)."""
    return [Pass(plan.decode_slots, plan.prefills)]


def separate(max_num_batched_tokens: int) -> Passes:
    """Runs prefills first, in passes of their own, then the decodes, which had to wait for them.

    For plans that cut no prompt into chunks: a pass takes whole prompts up to `max_num_batched_tokens`, and at least
    one however long it is. This is iteration-level scheduling without chunked prefill (Orca; vLLM before 0.4).
    """

    def passes(plan: StepPlan) -> list[Pass]:
        found: list[Pass] = []
        together: list[PrefillChunk] = []
        tokens = 0
        for chunk in plan.prefills:
            if together and tokens + chunk.length > max_num_batched_tokens:
                found.append(Pass(_NO_SLOTS, tuple(together)))
                together, tokens = [], 0
            together.append(chunk)
            tokens += chunk.length
        if together:
            found.append(Pass(_NO_SLOTS, tuple(together)))
        if len(plan.decode_slots) or not found:
            found.append(Pass(plan.decode_slots, ()))
        return found

    return passes

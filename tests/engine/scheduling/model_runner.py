"""A stand-in for the runner, for unit tests only: it computes no model, but checks every plan against the rules.

It knows nothing of the scheduler's code. From the plans alone it rebuilds who owns which block and how far each slot
is computed, and raises on the first breach. The "model" is a hash of all tokens before, so an output is right only if
every token was computed exactly once, in order, after whatever preemptions and chunks there were.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np

from inflight_engine.scheduling.limits import Limits
from inflight_engine.scheduling.plan import StepPlan

VOCAB = 50


def next_token(token_ids: list[int]) -> int:
    """The model: any change anywhere before changes the token."""
    return zlib.crc32(np.array(token_ids, np.int32).tobytes()) % VOCAB


def reference_output(prompt: list[int], max_tokens: int, stop_token_ids: tuple[int, ...] = ()) -> list[int]:
    """What a request alone, in one piece, generates."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_token_ids:
            break
    return tokens[len(prompt) :]


@dataclass
class SlotView:
    request_id: int
    token_ids: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class ModelRunner:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.slots: dict[int, SlotView] = {}
        self.limits = Limits(1 << 30, 1 << 30)
        self.running_before = 0
        self.steps = 0

    def execute(self, plan: StepPlan) -> np.ndarray:
        assert plan.step == self.steps, "steps are numbered without gaps"
        self.steps += 1
        for slot in plan.releases:
            assert slot in self.slots, f"slot {slot} is released but not taken"
            del self.slots[slot]
        survivors = len(self.slots)
        for start in plan.starts:
            assert start.slot not in self.slots, f"slot {start.slot} is taken twice"
            self.slots[start.slot] = SlotView(start.request_id, start.token_ids.tolist())
        if plan.starts:
            assert len(self.slots) <= self.limits.max_num_seqs, "admission beyond max_num_seqs"
        assert len(self.slots) <= max(survivors, self.limits.max_num_seqs)
        for grant in plan.grants:
            view = self.slots[grant.slot]
            assert grant.first == len(view.blocks), "a grant leaves a gap in the block table"
            view.blocks += grant.block_ids
        owned = [block for view in self.slots.values() for block in view.blocks]
        assert len(owned) == len(set(owned)), "a block has two owners"
        assert all(0 <= block < self.num_blocks for block in owned)

        decodes = plan.decode_slots.tolist()
        chunks = plan.prefills
        assert plan.num_tokens == len(decodes) + sum(chunk.length for chunk in chunks)
        assert 0 < plan.num_tokens <= self.limits.max_num_batched_tokens, "the step is empty or over its budget"
        computing = decodes + [chunk.slot for chunk in chunks]
        assert len(computing) == len(set(computing)), "a slot is computed twice in a step"
        for slot in decodes:
            view = self.slots[slot]
            assert view.computed == len(view.token_ids) - 1, "a decode must have exactly one token left to compute"
            view.computed += 1
        for chunk in chunks:
            view = self.slots[chunk.slot]
            assert chunk.length > 0
            assert chunk.start == view.computed, "a chunk skips or repeats tokens"
            view.computed += chunk.length
            assert chunk.samples == (view.computed == len(view.token_ids))
        for slot in computing:
            view = self.slots[slot]
            assert view.computed <= len(view.blocks) * self.block_size, "a token has no block"
        sampled = []
        for slot in plan.sampled_slots.tolist():
            view = self.slots[slot]
            assert view.computed == len(view.token_ids), "sampled before all tokens were computed"
            sampled.append(next_token(view.token_ids))
            view.token_ids.append(sampled[-1])
        return np.array(sampled, np.int32)

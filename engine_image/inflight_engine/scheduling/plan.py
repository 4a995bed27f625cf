"""The step plan: the only thing that passes from the scheduler to the runner.

A plan says what changed since the previous one. The runner keeps a persistent batch of per-slot arrays and edits it
by these deltas, so in steady decode every tuple is empty and nothing is walked request by request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inflight_engine.request import SamplingParams, TokenIds

Slots = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SlotStart:
    """A request takes a slot: new, or resumed after a preemption.

    Attributes:
        token_ids: int32 [num_tokens]: the prompt, then whatever was generated before a preemption.
        num_prompt_tokens: how many of them are the prompt.
    """

    slot: int
    request_id: int
    token_ids: TokenIds
    num_prompt_tokens: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class BlockGrant:
    """Blocks appended to a slot's block table, from table index `first` on."""

    slot: int
    first: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Compute tokens [start, start + length) of a slot. `samples`: the chunk ends at the last known token, so the
    next one is sampled."""

    slot: int
    start: int
    length: int
    samples: bool


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One iteration. Apply in this order: `releases`, `starts`, `grants`, then compute.

    Attributes:
        step: 0, 1, 2, ...
        releases: slots given up since the previous plan (finished, cancelled, preempted). A slot may be released and
            started again in the same plan.
        grants: only the tables that grow.
        prefills: chunks, in the order of the packed batch after the decodes.
        decode_slots: int32 [num_decodes]: slots whose last sampled token is computed and whose next one is sampled.
            The same array object in consecutive plans while the set does not change; read-only.
        num_tokens: tokens computed in the step, decodes plus chunk lengths; at most `max_num_batched_tokens`.

    The runner returns int32 [num_decodes + number of sampling chunks]: one token for each decode slot in order, then
    one for each sampling chunk in order.
    """

    step: int
    releases: tuple[int, ...]
    starts: tuple[SlotStart, ...]
    grants: tuple[BlockGrant, ...]
    prefills: tuple[PrefillChunk, ...]
    decode_slots: Slots
    num_tokens: int

    @property
    def sampled_slots(self) -> Slots:
        """int32: the slot of each token that the runner returns."""
        chunks = [c.slot for c in self.prefills if c.samples]
        if not chunks:
            return self.decode_slots
        return np.concatenate([self.decode_slots, np.array(chunks, np.int32)])

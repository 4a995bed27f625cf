"""The step plan: the only thing that passes from the scheduler to the runner.

A plan says what changed since the previous one. The runner keeps a persistent batch of per-slot arrays and edits it
by these deltas, so in steady decode there is nothing but block growth to read, and nothing is walked request by
request. The structs are msgspec's because one is made in every step: frozen ones cost a tenth of a frozen dataclass.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from inflight_engine.cache.block_pool import BlockIds
from inflight_engine.cache.tiers import Stores
from inflight_engine.request import SamplingParams, TokenIds

Slots = npt.NDArray[np.intp]


class Preemption(msgspec.Struct, frozen=True, eq=False):
    """A running request loses its slot and blocks. The slot is also in the plan's `releases`."""

    slot: int
    request_id: int


class SlotStart(msgspec.Struct, frozen=True, eq=False):
    """A request takes a slot: new, or resumed after a preemption.

    Attributes:
        token_ids: int32 [num_tokens]: the prompt, then whatever was generated before a preemption.
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: how many of them have their keys and values in `block_ids` already (a prefix hit), or will
            have once `host_block_ids` are copied in. Always less than num_tokens, and whole blocks.
        block_ids: int32: the slot's block table, enough for all of `token_ids`.
        host_block_ids: blocks in host memory to copy in, one to one, before the step is computed: to the last of
            those of `block_ids` that hold the computed tokens.
        host_hashes: of their content. Other content may come to these blocks while the plan is in flight.
    """

    slot: int
    request_id: int
    token_ids: TokenIds
    num_prompt_tokens: int
    num_computed_tokens: int
    sampling: SamplingParams
    block_ids: BlockIds
    host_block_ids: tuple[int, ...]
    host_hashes: tuple[bytes, ...] = ()

    def loaded(self, block_size: int) -> BlockIds:
        """Return the blocks that `host_block_ids` are copied to."""
        end = self.num_computed_tokens // block_size
        return self.block_ids[end - len(self.host_block_ids) : end]


class BlockGrowth(msgspec.Struct, frozen=True, eq=False):
    """A further block for each of some decoding slots: `block_table[slots[i], indices[i]] = block_ids[i]`.

    Attributes:
        slots, indices: intp [n].
        block_ids: int32 [n].
    """

    slots: Slots
    indices: Slots
    block_ids: BlockIds


class PrefillChunk(msgspec.Struct, frozen=True):
    """Compute tokens [start, start + length) of a slot. `samples`: the chunk ends at the last known token, so the
    next one is sampled."""

    slot: int
    start: int
    length: int
    samples: bool


class StepPlan(msgspec.Struct, frozen=True, eq=False):
    """Plan of an iteration. Apply in this order: `stores`, `releases`, `starts` with their copies in,
    `extensions`, `growth`, then compute.

    Attributes:
        step: 0, 1, 2, ...
        preemptions: requests that lose their slot to others in this step.
        releases: all slots given up since the previous plan (finished, cancelled, preempted). A slot may be released
            and started again in the same plan.
        starts: in order of admission.
        growth: None when no table grows.
        prefills: chunks, in the order of the packed batch after the decodes.
        decode_slots: intp [num_decodes], ascending: slots whose last known token is computed and whose next one is
            sampled. The same array object in consecutive plans while the set does not change; read-only.
        num_tokens: tokens computed in the step, decodes plus chunk lengths; at most `max_num_batched_tokens`.
        extensions: slots that go on with the same request, which has more tokens than it sampled: those that its
            grammar forces. The first chunk of them is in the plan. They are applied as `starts`.
        stores: copies of what the plan's blocks held before; None: none.

    The runner returns int32 [num_decodes + number of sampling chunks]: one token for each decode slot in order, then
    one for each sampling chunk in order.
    """

    step: int
    preemptions: tuple[Preemption, ...]
    releases: tuple[int, ...]
    starts: tuple[SlotStart, ...]
    growth: BlockGrowth | None
    prefills: tuple[PrefillChunk, ...]
    decode_slots: Slots
    num_tokens: int
    extensions: tuple[SlotStart, ...] = ()
    stores: Stores | None = None

    @property
    def all_starts(self) -> tuple[SlotStart, ...]:
        """Starts and extensions: all slots whose tokens are given anew."""
        return self.starts + self.extensions if self.extensions else self.starts

    @property
    def sampled_slots(self) -> Slots:
        """intp: the slot of each token that the runner returns."""
        chunks = [chunk.slot for chunk in self.prefills if chunk.samples]
        if not chunks:
            return self.decode_slots
        return np.concatenate([self.decode_slots, np.array(chunks, np.intp)])

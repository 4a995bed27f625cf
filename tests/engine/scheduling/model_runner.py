"""A stand-in for the runner, for tests only: it computes no model, but checks every plan against the plan's contract.

It knows nothing of the scheduler's code. From the prompts and the plans alone it rebuilds who has which slot, who owns
which block, and what every entry of every device and host block holds, and raises on the first breach.

The "model" is a hash of all tokens before. An entry of a block holds the hash of the tokens up to its own (its
"stamp"), as the keys and values of a real model depend on all tokens before. A chunk or a decode writes stamps, a copy
to or from host memory copies them, a prefix hit finds them. So a wrong hit, a block given to somebody else while it was
owned, a copy in the wrong order or a token computed too few times is a wrong stamp, and it is noticed when the entry is
next read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import Preemption, SlotStart, StepPlan

VOCAB = 50
UNWRITTEN = -1
_HASH_BITS = 32
_HASH_MASK = (1 << _HASH_BITS) - 1


def reference_output(prompt: Sequence[int], max_tokens: int, stop_token_ids: tuple[int, ...] = ()) -> list[int]:
    """Output of a request alone, in one piece: any change anywhere before changes the next token."""
    crc = zlib.crc32(np.array(prompt, np.int32).tobytes())
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(crc % VOCAB)
        if output[-1] in stop_token_ids:
            break
        crc = zlib.crc32(output[-1].to_bytes(4, "little"), crc)
    return output


@dataclass(frozen=True, slots=True)
class Computed:
    """Part of a request that a step computed, or was to compute: tokens [begin, end), in its blocks then."""

    slot: int
    request_id: int
    blocks: tuple[int, ...]
    block_size: int
    begin: int
    end: int

    @property
    def read(self) -> set[tuple[int, int]]:
        """(block, offset) of each entry that was there before."""
        return self._entries(0, self.begin)

    @property
    def written(self) -> set[tuple[int, int]]:
        """(block, offset) of each entry that it computed."""
        return self._entries(self.begin, self.end)

    def _entries(self, first: int, last: int) -> set[tuple[int, int]]:
        return {(self.blocks[at // self.block_size], at % self.block_size) for at in range(first, last)}


@dataclass(slots=True, eq=False)
class ModelSequence:
    """The model's state of a request.

    Attributes:
        domain: requests of different domains (tenant, cache salt) must not see each other's blocks.
        token_ids: known so far.
        stamps: what the entry of each known token has to hold.
        computed: how many of them are in `blocks`.
        confirmed: how many of those a hit brought, or steps whose tokens the scheduler took in.
        slot: -1 while it has none.
        started: number of its last start among all starts.
        samples: tokens sampled since its last start or extension; a request that has one decodes.
        extended: when it was extended, among all extensions, and did not decode since; -1: it did.
    """

    request_id: int
    domain: int
    token_ids: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    computed: int = 0
    confirmed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = -1
    started: int = -1
    samples: int = 0
    extended: int = -1

    @property
    def decodes(self) -> bool:
        return self.samples > 0

    def extend(self, token_ids: Iterable[int]) -> None:
        stamps, domain = self.stamps, self.domain << _HASH_BITS
        crc = stamps[-1] & _HASH_MASK if stamps else 0
        for token in token_ids:
            self.token_ids.append(token)
            crc = zlib.crc32(token.to_bytes(4, "little"), crc)
            stamps.append(crc | domain)


class ModelRunner:
    """
    Args:
        max_num_seqs: rows of the slot table.
        num_blocks, num_host_blocks, block_size: the KV cache and its place in host memory.

    Attributes:
        slots: who holds each taken slot, also those that ended since the last plan.
        sequences: every request that did not end.
        refs: how many block tables hold each device block.
        num_owned: device blocks that any table holds.
        hit_tokens: tokens that starts found in the cache.
        written: (block, offset) of each entry that the last plan executed computed.
        computed: of each request by the last plan, in its order; where that broke, what it was to compute.
    """

    def __init__(self, max_num_seqs: int, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.max_num_seqs = max_num_seqs
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_host_blocks = num_host_blocks
        self.memory = [[UNWRITTEN] * block_size for _ in range(num_blocks)]
        self.host_memory = [[UNWRITTEN] * block_size for _ in range(num_host_blocks)]
        self.slots: dict[int, ModelSequence] = {}
        self.sequences: dict[int, ModelSequence] = {}
        self.refs = [0] * num_blocks
        self.num_owned = 0
        self.steps = 0
        self.starts = 0
        self.hit_tokens = 0
        self.owed_releases: set[int] = set()
        self.owed_extensions: set[int] = set()
        self.extensions = 0
        self.written: list[tuple[int, int]] = []
        self.computed: list[Computed] = []

    @property
    def running(self) -> list[ModelSequence]:
        """Who holds a slot and did not end, in no order."""
        return [sequence for slot, sequence in self.slots.items() if slot not in self.owed_releases]

    def add(self, request_id: int, prompt: Iterable[int], domain: int) -> None:
        sequence = self.sequences[request_id] = ModelSequence(request_id, domain)
        sequence.extend(prompt)

    def end(self, request_id: int) -> None:
        """The request finished or was cancelled: its blocks are free from here on, its slot is in the next plan's
        releases."""
        sequence = self.sequences.pop(request_id)
        self._drop_blocks(sequence)
        if sequence.slot >= 0:
            self._leave(sequence.slot)

    def extend(self, request_id: int, num_known: int, token_ids: list[int], blocks: list[int]) -> None:
        """A request that decodes gets tokens that it did not sample, and blocks for them. What a step under way
        computes for it beyond the `num_known` before them is worth nothing."""
        sequence = self.sequences[request_id]
        del sequence.token_ids[num_known:], sequence.stamps[num_known:]
        sequence.extend(token_ids)
        sequence.computed, sequence.samples = num_known - 1, 0
        for block in blocks:
            assert not self.refs[block], f"block {block} is given out while it is owned"
        sequence.blocks += blocks
        self._take(blocks)
        sequence.extended = self.extensions
        self.extensions += 1
        self.owed_extensions.add(sequence.slot)

    def execute(self, plan: StepPlan) -> TokenIds:
        """Checks the plan, does what it says, and returns the sampled tokens."""
        self._apply(plan)
        decodes = plan.decode_slots.tolist()
        self.computed = self._to_compute(plan)
        self._write(plan, decodes)
        return self._read_and_sample(plan, decodes)

    def fail(self, plan: StepPlan) -> None:
        """Checks the plan's changes, and breaks before a copy or a token is written: host and device blocks that were
        to be copied to hold nothing, and those that were to be computed what they held before."""
        self._apply(plan)
        self.computed = self._to_compute(plan)
        self._spoil_copies(plan)

    def spoil(self, plan: StepPlan, written: list[tuple[int, int]]) -> None:
        """A plan that was executed turns out to have broken: whatever it wrote or copied holds nothing."""
        for block, offset in written:
            self.memory[block][offset] = UNWRITTEN
        self._spoil_copies(plan)

    def _spoil_copies(self, plan: StepPlan) -> None:
        nothing = [UNWRITTEN] * self.block_size
        for host in [] if plan.stores is None else plan.stores.host_block_ids.tolist():
            self.host_memory[host][:] = nothing
        for start in plan.starts:
            for block in start.loaded(self.block_size).tolist():
                self.memory[block][:] = nothing

    def lose(self, entries: Iterable[tuple[int, int]]) -> None:
        """These (block, offset) hold nothing."""
        for block, offset in entries:
            self.memory[block][offset] = UNWRITTEN

    def put_back(self, request_id: int) -> None:
        """A request loses its slot outside a plan, to be computed from its tokens again. What it sampled since its
        start is of steps that broke for it, and never was."""
        sequence = self.sequences[request_id]
        for _ in range(sequence.samples):
            sequence.token_ids.pop()
            sequence.stamps.pop()
        sequence.computed = sequence.confirmed = 0
        self._drop_blocks(sequence)
        self._leave(sequence.slot)

    def _apply(self, plan: StepPlan) -> None:
        assert plan.step == self.steps, "steps are numbered without gaps"
        self.steps += 1
        if plan.stores is not None:
            self._copy_out(plan)
        for preemption in plan.preemptions:
            self._preempt(preemption)
        if plan.releases or self.owed_releases:
            self._release(plan)
        for start in plan.starts:
            self._start(start)
        for extension in plan.extensions:
            self._extend(extension)
        chunks = {chunk.slot for chunk in plan.prefills}
        assert self.owed_extensions.isdisjoint(chunks), "the runner does not know tokens that it is to compute"
        if plan.growth is not None:
            self._grow(plan)

    def _copy_out(self, plan: StepPlan) -> None:
        assert plan.stores is not None
        blocks, hosts = plan.stores.block_ids.tolist(), plan.stores.host_block_ids.tolist()
        assert len(blocks) == len(hosts) > 0, "blocks copied out and host blocks are not one to one"
        assert len(set(hosts)) == len(hosts), "two blocks are copied to one place"
        for block, host in zip(blocks, hosts, strict=True):
            assert 0 <= host < self.num_host_blocks, f"there is no host block {host}"
            self.host_memory[host][:] = self.memory[block]

    def _preempt(self, preemption: Preemption) -> None:
        sequence = self.slots.get(preemption.slot)
        assert sequence is not None, f"slot {preemption.slot} is preempted but not taken"
        assert preemption.slot not in self.owed_releases, "a request that ended is preempted"
        assert sequence.request_id == preemption.request_id, "the preemption names another request than the slot's"
        sequence.computed = sequence.confirmed = 0
        self._drop_blocks(sequence)
        self._leave(preemption.slot)

    def _leave(self, slot: int) -> None:
        self.owed_releases.add(slot)
        self.owed_extensions.discard(slot)

    def _release(self, plan: StepPlan) -> None:
        released = set(plan.releases)
        assert len(released) == len(plan.releases), "a slot is released twice"
        assert released >= self.owed_releases, f"slots not released: {sorted(self.owed_releases - released)}"
        assert released <= self.owed_releases, f"slots released for no reason: {sorted(released - self.owed_releases)}"
        for slot in plan.releases:
            self.slots.pop(slot).slot = -1
        self.owed_releases.clear()

    def _start(self, start: SlotStart) -> None:
        slot, tokens, blocks, hosts = (
            start.slot,
            start.token_ids.tolist(),
            start.block_ids.tolist(),
            start.host_block_ids,
        )
        computed, size = start.num_computed_tokens, self.block_size
        assert 0 <= slot < self.max_num_seqs, f"there is no slot {slot}"
        assert slot not in self.slots, f"slot {slot} is taken twice"
        sequence = self.sequences[start.request_id]
        assert sequence.slot < 0, f"request {start.request_id} has two slots"
        assert tokens == sequence.token_ids, f"request {start.request_id} starts with other tokens than it has"
        self.slots[slot] = sequence
        assert 0 <= computed < len(tokens), "a start must leave at least one token to compute"
        assert len(blocks) == -(-len(tokens) // size), "the block table is not just enough for the tokens"
        assert len(set(blocks)) == len(blocks), "a table holds a block twice"
        assert min(blocks) >= 0, "there is no such block"
        assert max(blocks) < self.num_blocks, "there is no such block"

        assert computed % size == 0, "a start goes on inside a block"
        fresh = blocks[computed // size - len(hosts) :]
        self.hit_tokens += computed
        for block, host in zip(fresh, hosts, strict=False):
            assert not self.refs[block], f"block {block} is overwritten by a copy from host while it is owned"
            self.memory[block][:] = self.host_memory[host]
        for block in fresh:
            assert not self.refs[block], f"block {block} is given out while it is owned"
        sequence.slot, sequence.blocks, sequence.computed, sequence.samples = slot, blocks, computed, 0
        sequence.confirmed = computed
        sequence.started, sequence.extended = self.starts, -1
        self.starts += 1
        self._take(blocks)

    def _extend(self, extension: SlotStart) -> None:
        slot = extension.slot
        assert slot in self.owed_extensions, f"slot {slot} is extended for no reason"
        self.owed_extensions.remove(slot)
        sequence = self.slots[slot]
        assert extension.request_id == sequence.request_id, "an extension names another request than the slot's"
        assert extension.token_ids.tolist() == sequence.token_ids, "an extension has other tokens than the request"
        assert extension.num_computed_tokens == sequence.computed, "an extended request does not go on where it was"
        assert extension.block_ids.tolist() == sequence.blocks, "an extension has other blocks than the request"
        assert len(sequence.blocks) == -(-len(sequence.token_ids) // self.block_size), "blocks are not just enough"
        assert not extension.host_block_ids, "an extension is copied from host memory"

    def _grow(self, plan: StepPlan) -> None:
        growth = plan.growth
        assert growth is not None
        assert len(growth.slots) == len(growth.indices) == len(growth.block_ids) > 0
        decodes = set(plan.decode_slots.tolist())
        for slot, index, block in zip(
            growth.slots.tolist(), growth.indices.tolist(), growth.block_ids.tolist(), strict=True
        ):
            sequence = self.slots[slot]
            assert slot in decodes, f"slot {slot} grows but does not decode in this step"
            assert index == len(sequence.blocks), "growth leaves a gap in the block table"
            assert sequence.computed == index * self.block_size, "a table grows before it is full"
            assert 0 <= block < self.num_blocks, f"there is no block {block}"
            assert not self.refs[block], f"block {block} is given out while it is owned"
            sequence.blocks.append(block)
            self._take([block])

    def _write(self, plan: StepPlan, decodes: list[int]) -> None:
        size, memory, written = self.block_size, self.memory, self.written
        written.clear()
        assert plan.num_tokens == len(decodes) + sum(chunk.length for chunk in plan.prefills), "num_tokens is wrong"
        assert plan.num_tokens > 0, "a step computes nothing"
        assert decodes == sorted(decodes), "decode slots are not ascending"
        computing = decodes + [chunk.slot for chunk in plan.prefills]
        assert len(computing) == len(set(computing)), "a slot is computed twice in a step"
        for slot in decodes:
            sequence = self.slots[slot]
            position = sequence.computed
            assert position == len(sequence.stamps) - 1, "a decode must have exactly one token left to compute"
            index, offset = divmod(position, size)
            assert index < len(sequence.blocks), "a token has no block"
            memory[sequence.blocks[index]][offset] = sequence.stamps[position]
            written.append((sequence.blocks[index], offset))
            sequence.computed += 1
            sequence.extended = -1
        for chunk in plan.prefills:
            sequence = self.slots[chunk.slot]
            end = chunk.start + chunk.length
            assert not sequence.decodes, "a decoding request is prefilled"
            assert chunk.length > 0, "a chunk is empty"
            assert chunk.start == sequence.computed, "a chunk skips or repeats tokens"
            assert end <= len(sequence.stamps), "a chunk goes beyond the known tokens"
            assert chunk.samples == (end == len(sequence.stamps)), "a chunk samples before the last token, or does not"
            for position in range(chunk.start, end):
                memory[sequence.blocks[position // size]][position % size] = sequence.stamps[position]
                written.append((sequence.blocks[position // size], position % size))
            sequence.computed = end

    def _to_compute(self, plan: StepPlan) -> list[Computed]:
        lengths = [(slot, 1) for slot in plan.decode_slots.tolist()]
        lengths += [(chunk.slot, chunk.length) for chunk in plan.prefills]
        return [self._computed(slot, length) for slot, length in lengths]

    def _computed(self, slot: int, length: int) -> Computed:
        sequence = self.slots[slot]
        begin, blocks = sequence.computed, tuple(sequence.blocks)
        return Computed(slot, sequence.request_id, blocks, self.block_size, begin, begin + length)

    def _read_and_sample(self, plan: StepPlan, decodes: list[int]) -> TokenIds:
        sampled = []
        for slot in decodes + [chunk.slot for chunk in plan.prefills]:
            sequence = self.slots[slot]
            content = self._content(sequence)
            assert content == sequence.stamps[: sequence.computed], (
                f"request {sequence.request_id} reads blocks that do not hold its tokens"
            )
            if sequence.computed == len(sequence.stamps):
                # From what the blocks hold, as a real model would.
                sampled.append((content[-1] & _HASH_MASK) % VOCAB)
                sequence.extend((sampled[-1],))
                sequence.samples += 1
        return np.array(sampled, np.int32)

    def _content(self, sequence: ModelSequence) -> list[int]:
        memory = self.memory
        return list(chain.from_iterable([memory[block] for block in sequence.blocks]))[: sequence.computed]

    def _take(self, blocks: list[int]) -> None:
        refs = self.refs
        for block in blocks:
            self.num_owned += not refs[block]
            refs[block] += 1

    def _drop_blocks(self, sequence: ModelSequence) -> None:
        refs = self.refs
        for block in sequence.blocks:
            refs[block] -= 1
            self.num_owned -= not refs[block]
        sequence.blocks = []

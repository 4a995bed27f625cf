"""A small scheduler for runner tests: hand-made plans for many requests at once, with its own block accounting."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from inflight_engine.cache.tiers import Stores
from inflight_engine.output import PromptLogprobs, StepOutput, TokenLogprobs
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import BlockGrowth, Preemption, PrefillChunk, SlotStart, StepPlan


def make_plan(*, preemptions=(), stores=(), releases=(), starts=(), growth=None, prefills=(), decodes=()):
    slots = np.array(decodes, np.intp)
    num_tokens = len(slots) + sum(chunk.length for chunk in prefills)
    copies = Stores(*(np.array(each, np.int32) for each in zip(*stores, strict=True))) if stores else None
    changes = tuple(preemptions), tuple(releases), tuple(starts), growth, tuple(prefills)
    return StepPlan(0, *changes, slots, num_tokens, stores=copies)


NOT_KNOWN = -1
"""A token that is sampled and not collected."""


@dataclass
class Sequence:
    """`computed`: tokens whose keys and values are in the cache, or in host memory while `host_blocks` is not empty;
    whole blocks then."""

    request_id: int
    prompt: list[int]
    sampling: SamplingParams
    slot: int = -1
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def decodes(self) -> bool:
        return bool(self.output) and self.computed == len(self.tokens) - 1

    @property
    def finished(self) -> bool:
        return len(self.output) >= self.sampling.max_tokens or bool(
            self.output and self.output[-1] in self.sampling.stop_token_ids
        )


class Driver:
    """Runs sequences to their end.

    Args:
        chunk: most prefill tokens a step, for all sequences together.
        max_running: most sequences with a slot.
        preempt_every: every so many steps, the last sequence to come loses its slot and blocks.
        swap: a preempted sequence's full blocks are copied out, and back in when it resumes.
        share_prefixes: full blocks are kept, and a sequence that begins with the same tokens starts behind them.
        cancel_every: every so many steps, a running sequence is cancelled after the launch.

    Where the runner looks ahead, each step is launched before the one before it is collected; only a preemption waits,
    since its sequence starts again from known tokens.
    """

    def __init__(
        self,
        runner,
        *,
        chunk=10**9,
        max_running=32,
        preempt_every=0,
        swap=False,
        share_prefixes=False,
        cancel_every=0,
        rng=None,
    ):
        self.runner = runner
        self.cancel_every, self.rng = cancel_every, rng
        self.in_flight = []
        self.cancelled: list[Sequence] = []
        self.chunk, self.max_running, self.preempt_every = chunk, max_running, preempt_every
        self.swap, self.share_prefixes = swap, share_prefixes
        self.free_blocks = list(range(runner.info.num_blocks))
        self.free_host_blocks = list(range(runner.info.num_host_blocks))
        self.free_slots = list(range(max_running))
        if rng is not None:
            for free in (self.free_blocks, self.free_host_blocks, self.free_slots):
                rng.shuffle(free)
        self.kept: dict[tuple[int, ...], int] = {}
        self.step = 0
        self.num_swaps = self.num_hit_tokens = self.num_decodes_at_start = 0
        self.releases: list[int] = []
        self.sequences: list[Sequence] = []

    def run(self, prompts, sampling):
        """Output token ids of each prompt; `sampling` is one SamplingParams or a list of them."""
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        self.sequences = [Sequence(i, list(p), s) for i, (p, s) in enumerate(zip(prompts, each, strict=True))]
        waiting, running = list(self.sequences), []
        while waiting or running:
            self.step += 1
            preemptions, stores = [], []
            if self.preempt_every and self.step % self.preempt_every == 0 and len(running) > 1:
                self._collect(0)
                victim = running.pop()
                preemptions.append(self._preempt(victim, stores))
                waiting.insert(1, victim)
            self._one_step(preemptions, stores, waiting, running)
        self._collect(0)
        return [s.output for s in self.sequences]

    def _one_step(self, preemptions, stores, waiting, running):
        starts = []
        budget = self.chunk
        while waiting and len(running) < self.max_running and budget > 0:
            sequence = waiting.pop(0)
            starts.append(self._start(sequence))
            self.num_decodes_at_start += sequence.decodes
            running.append(sequence)
            budget -= len(sequence.tokens) - sequence.computed
        decodes = sorted((s for s in running if s.decodes), key=lambda s: s.slot)
        growth = [self._grow(s) for s in decodes if len(s.tokens) > len(s.blocks) * self.runner.info.block_size]
        prefills, sampled = [], list(decodes)
        budget = self.chunk
        for sequence in running:
            if sequence in decodes or budget <= 0:
                continue
            length = min(budget, len(sequence.tokens) - sequence.computed)
            end = sequence.computed + length
            samples = end == len(sequence.tokens)
            prefills.append(PrefillChunk(sequence.slot, sequence.computed, length, samples))
            if samples:
                sampled.append(sequence)
            sequence.computed = end
            budget -= length
        plan = make_plan(
            preemptions=preemptions,
            stores=stores,
            releases=self.releases,
            starts=starts,
            growth=BlockGrowth(*(np.array(column) for column in zip(*growth, strict=True))) if growth else None,
            prefills=prefills,
            decodes=[s.slot for s in decodes],
        )
        self.releases = []
        self._execute(plan, decodes, sampled)
        for sequence in running:
            self._keep_full_blocks(sequence)
        ended = [s for s in running if s.finished]
        if self.cancel_every and self.step % self.cancel_every == 0 and len(running) > len(ended):
            victim = self.rng.choice([s for s in running if s not in ended])
            self.cancelled.append(victim)
            ended.append(victim)
        for sequence in ended:
            running.remove(sequence)
            self._release(sequence)
        self._collect(1 if self.runner.lookahead else 0)

    def _execute(self, plan, decodes, sampled):
        """Launch; what is sampled is not known yet, but how many tokens there are then is."""
        self.runner.launch(plan)
        for sequence in decodes:
            sequence.computed += 1
        for sequence in sampled:
            sequence.output.append(NOT_KNOWN)
        chunks = {chunk.slot for chunk in plan.prefills}
        scored = {s.slot: s for s in self.sequences if s.slot in chunks and s.sampling.prompt_logprobs is not None}
        self.in_flight.append(([(s, s.slot, len(s.output) - 1) for s in sampled], scored))
        if not self.runner.lookahead:
            self._collect(0)

    def _collect(self, leave):
        """Collect launched steps, but the last `leave`."""
        while len(self.in_flight) > leave:
            sampled, scored = self.in_flight.pop(0)
            output = self.runner.collect()
            assert isinstance(output, StepOutput)
            assert output.token_ids.dtype == np.int32
            for (sequence, _, index), token in zip(sampled, output.token_ids.tolist(), strict=True):
                sequence.output[index] = token
            owners = {slot: sequence for sequence, slot, _ in sampled}
            assert [entry.slot for entry in output.logprobs] == [
                slot for sequence, slot, _ in sampled if sequence.sampling.logprobs is not None
            ], "each sampled slot that asks for them reports its log-probabilities, and no other"
            for entry in output.logprobs:
                owners[entry.slot].logprobs.append(entry)
            for report in output.prompt_logprobs:
                scored[report.slot].prompt_logprobs.append(report)

    def _start(self, sequence):
        sequence.slot = self.free_slots.pop()
        host_blocks, sequence.host_blocks = sequence.host_blocks, []
        if not host_blocks:
            sequence.blocks = self._hit(sequence)
            sequence.computed = len(sequence.blocks) * self.runner.info.block_size
            self.num_hit_tokens += sequence.computed
        while len(sequence.blocks) * self.runner.info.block_size < len(sequence.tokens):
            sequence.blocks.append(self.free_blocks.pop())
        self.free_host_blocks.extend(host_blocks)
        return SlotStart(
            sequence.slot,
            sequence.request_id,
            np.array(sequence.tokens, np.int32),
            len(sequence.prompt),
            sequence.computed,
            sequence.sampling,
            np.array(sequence.blocks, np.int32),
            tuple(host_blocks),
        )

    def _grow(self, sequence):
        sequence.blocks.append(self.free_blocks.pop())
        return sequence.slot, len(sequence.blocks) - 1, sequence.blocks[-1]

    def _preempt(self, sequence, stores):
        slot, size = sequence.slot, self.runner.info.block_size
        copied = sequence.blocks[: sequence.computed // size] if self.swap else []
        sequence.host_blocks = [self.free_host_blocks.pop() for _ in copied]
        stores += zip(copied, sequence.host_blocks, strict=True)
        self.num_swaps += bool(copied)
        self._release(sequence)
        sequence.computed = len(copied) * size
        return Preemption(slot, sequence.request_id)

    def _release(self, sequence):
        kept = set(self.kept.values())
        self.free_blocks.extend(block for block in sequence.blocks if block not in kept)
        self.free_slots.append(sequence.slot)
        self.releases.append(sequence.slot)
        sequence.blocks, sequence.computed, sequence.slot = [], 0, -1

    def _hit(self, sequence):
        """Kept blocks of the sequence's beginning, at least one token short of its end; none where all of its prompt
        has to be computed."""
        if sequence.sampling.prompt_logprobs is not None:
            return []
        size, hit = self.runner.info.block_size, []
        for end in range(size, len(sequence.tokens), size):
            block = self.kept.get(tuple(sequence.tokens[:end]))
            if block is None:
                break
            hit.append(block)
        return hit

    def _keep_full_blocks(self, sequence):
        size = self.runner.info.block_size
        if self.share_prefixes:
            for index in range(sequence.computed // size):
                self.kept.setdefault(tuple(sequence.tokens[: (index + 1) * size]), sequence.blocks[index])

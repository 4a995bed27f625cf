"""A small scheduler for runner tests: hand-made plans for many requests at once, with its own block accounting."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import BlockGrant, PrefillChunk, SlotStart, StepPlan

NO_SLOTS = np.empty(0, np.int32)


@dataclass
class Sequence:
    """`computed`: tokens whose keys and values are in the cache."""

    request_id: int
    prompt: list[int]
    sampling: SamplingParams
    slot: int = -1
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

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
    """

    def __init__(self, runner, *, chunk=10**9, max_running=32, preempt_every=0, rng=None):
        self.runner = runner
        self.chunk, self.max_running, self.preempt_every = chunk, max_running, preempt_every
        self.free_blocks = list(range(runner.info.num_blocks))
        if rng is not None:
            rng.shuffle(self.free_blocks)
        self.free_slots = list(range(max_running))
        self.step = 0
        self.releases: list[int] = []

    def run(self, prompts, sampling):
        """Output token ids of each prompt; `sampling` is one SamplingParams or a list of them."""
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        sequences = [Sequence(i, list(p), s) for i, (p, s) in enumerate(zip(prompts, each, strict=True))]
        waiting, running = list(sequences), []
        while waiting or running:
            self.step += 1
            if self.preempt_every and self.step % self.preempt_every == 0 and len(running) > 1:
                victim = running.pop()
                self._release(victim)
                waiting.insert(0, victim)
            self._one_step(waiting, running)
        return [s.output for s in sequences]

    def _one_step(self, waiting, running):
        starts, grants, prefills, sampling_sequences = [], [], [], []
        decodes = [s for s in running if s.computed == len(s.tokens) - 1 and s.output]
        budget = self.chunk
        for sequence in decodes:
            self._grow(sequence, len(sequence.tokens), grants)
        while waiting and len(running) < self.max_running and budget > 0:
            sequence = waiting.pop(0)
            sequence.slot = self.free_slots.pop()
            running.append(sequence)
            starts.append(
                SlotStart(
                    sequence.slot,
                    sequence.request_id,
                    np.array(sequence.tokens, np.int32),
                    len(sequence.prompt),
                    sequence.sampling,
                )
            )
            budget -= len(sequence.tokens)
        budget = self.chunk
        for sequence in running:
            if sequence in decodes or budget <= 0:
                continue
            length = min(budget, len(sequence.tokens) - sequence.computed)
            end = sequence.computed + length
            self._grow(sequence, end, grants)
            samples = end == len(sequence.tokens)
            prefills.append(PrefillChunk(sequence.slot, sequence.computed, length, samples))
            if samples:
                sampling_sequences.append(sequence)
            sequence.computed = end
            budget -= length
        slots = np.array([s.slot for s in decodes], np.int32) if decodes else NO_SLOTS
        num_tokens = len(decodes) + sum(c.length for c in prefills)
        plan = StepPlan(
            self.step, tuple(self.releases), tuple(starts), tuple(grants), tuple(prefills), slots, num_tokens
        )
        self.releases = []
        token_ids = self.runner.execute(plan)
        assert token_ids.dtype == np.int32
        for sequence in decodes:
            sequence.computed += 1
        for sequence, token in zip(decodes + sampling_sequences, token_ids.tolist(), strict=True):
            sequence.output.append(token)
        for sequence in [s for s in running if s.finished]:
            running.remove(sequence)
            self._release(sequence)

    def _grow(self, sequence, num_tokens, grants):
        needed = -(-num_tokens // self.runner.info.block_size) - len(sequence.blocks)
        if needed > 0:
            new = tuple(self.free_blocks.pop() for _ in range(needed))
            grants.append(BlockGrant(sequence.slot, len(sequence.blocks), new))
            sequence.blocks.extend(new)

    def _release(self, sequence):
        self.free_blocks.extend(sequence.blocks)
        self.free_slots.append(sequence.slot)
        self.releases.append(sequence.slot)
        sequence.blocks, sequence.computed, sequence.slot = [], 0, -1

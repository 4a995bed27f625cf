"""Tokens of step reports, to the requests in their slots. The cost depends on the size of a report, not on the number
of running requests."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from inflight_engine.messages import StepReport
from inflight_engine.server.requests.counts import Counts
from inflight_engine.server.requests.generation import Generation


class Slots:
    """The request in each slot of one engine process."""

    def __init__(self, counts: Counts, num_slots: int = 0) -> None:
        self._counts = counts
        self._owners: list[Generation | None] = [None] * num_slots
        self._last_tokens_at = math.nan
        self._resumed: list[Generation] = []
        """Requests with a slot again after a preemption, and no token since then."""

    def take(self, slot: int, generation: Generation | None) -> None:
        """A request takes a slot; None: one that is not known here."""
        self._owners[slot] = generation
        if generation is not None:
            generation.slot = slot

    def resume(self, generation: Generation) -> None:
        """A preempted request has a slot again: its next token ends the preemption."""
        self._resumed.append(generation)

    def free(self, generation: Generation) -> None:
        """A request left its slot. Otherwise its tokens would stay in memory until the slot is taken again."""
        if generation.slot >= 0 and self._owners[generation.slot] is generation:
            self._owners[generation.slot] = None

    def add_prompt_logprobs(self, report: StepReport) -> None:
        """Add the log-probabilities of prompts in a report."""
        for prompt_logprobs in report.prompt_logprobs:
            owner = self._owners[prompt_logprobs.slot]
            if owner is not None and not owner.done:
                owner.add_prompt_logprobs(prompt_logprobs)

    def add_pooled(self, report: StepReport) -> None:
        """Add the hidden states of prompts in a report."""
        for pooled in report.pooled:
            owner = self._owners[pooled.slot]
            if owner is not None and not owner.done:
                owner.pooled = pooled.vector

    def add_tokens(self, report: StepReport, now: float, end: Callable[[Generation], None]) -> None:
        """Add the tokens of a report that arrived at `now`, in seconds on the monotonic clock. `end` ends a request
        whose text reached a stop string: it gets no later token of the same report."""
        if not report.slots:
            return
        counts, last, owners = self._counts, self._last_tokens_at, self._owners
        logprobs = {each.slot: each for each in report.logprobs}
        steady = count = 0
        slots = np.frombuffer(report.slots, np.int32).tolist()
        token_ids = np.frombuffer(report.token_ids, np.int32).tolist()
        for slot, token_id in zip(slots, token_ids, strict=True):
            generation = owners[slot]
            if generation is None or generation.done:
                continue
            count += 1
            if generation.last_token_at == last:
                steady += 1
            elif generation.last_token_at < 0:
                generation.timings.first_token = now
                if not generation.first_token_counted:
                    generation.first_token_counted = True
                    counts.time_to_first_token.observe(now - generation.timings.arrived)
                    counts.prompt_tokens += len(generation.request.prompt_token_ids)
            else:
                counts.inter_token_latency.observe(now - generation.last_token_at)
            generation.last_token_at = now
            if generation.add_token(token_id, logprobs.get(slot)):
                end(generation)
        if steady:
            counts.inter_token_latency.observe(now - last, steady)
        if self._resumed:
            self._resumed = [generation for generation in self._resumed if not _caught_up(generation, now)]
        counts.generation_tokens += count
        self._last_tokens_at = now


def _caught_up(generation: Generation, now: float) -> bool:
    """Tracking of a resumed request ends: its next token arrived now, or it ended or lost its slot again."""
    latest = generation.preemptions[-1] if generation.preemptions else None
    if latest is None or latest.resumed is None or generation.done:
        return True
    if generation.last_token_at != now:
        return False
    latest.next_token = now
    return True

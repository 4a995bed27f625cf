"""Drives the real scheduler with the model runner and the rules, and collects what each request generates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from inflight_engine.request import FinishReason, Request, SamplingParams
from inflight_engine.scheduling.config import SchedulerConfig, SwapRates
from inflight_engine.scheduling.limits import Limits
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import Scheduler
from tests.engine.scheduling.model_runner import ModelRunner, reference_output
from tests.engine.scheduling.rules import Rules

SMALL = SchedulerConfig(Limits(4, 16), num_blocks=16, block_size=4, max_model_len=64)

Fails: TypeAlias = Callable[[StepPlan], bool]


def never(plan: StepPlan) -> bool:
    return False


class Driver:
    """
    Args:
        max_num_seqs, max_num_batched_tokens: capacity, and the limits at first.
        fields: of `SchedulerConfig`, instead of `SMALL`'s.

    Attributes:
        outputs: tokens generated so far by each request that ever came; each is checked as it comes.
        finished: why each request that ended did.
        admission_order: request of each start, resumed ones too.
        slot_owner: request that had each slot last.
        expected: what each request that did not end generates alone.
        plan: the last one, also when it broke a rule.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int = SMALL.capacity.max_num_seqs,
        max_num_batched_tokens: int = SMALL.capacity.max_num_batched_tokens,
        **fields: Any,
    ) -> None:
        config = replace(SMALL, capacity=Limits(max_num_seqs, max_num_batched_tokens), **fields)
        self.config = config
        self.scheduler = Scheduler(config)
        self.runner = ModelRunner(max_num_seqs, config.num_blocks, config.block_size, config.num_host_blocks)
        self.rules = Rules(config, self.runner)
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, FinishReason] = {}
        self.admission_order: list[int] = []
        self.slot_owner: dict[int, int] = {}
        self.expected: dict[int, list[int]] = {}
        self.plan: StepPlan | None = None
        self._domains: dict[tuple[str, str], int] = {}

    def add(
        self, request_id: int, prompt: Sequence[int], max_tokens: int, stop: tuple[int, ...] = (), **fields: Any
    ) -> Request:
        """`fields`: of `Request`, such as `arrival_time` (0 unless given), `priority`, `tenant`."""
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
        request = Request(request_id, np.array(prompt, np.int32), sampling, **{"arrival_time": 0.0, **fields})
        self.scheduler.add(request)
        domain = self._domains.setdefault((request.tenant, request.cache_salt), len(self._domains))
        self.runner.add(request_id, prompt, domain)
        self.rules.added(request)
        self.outputs[request_id] = []
        self.expected[request_id] = reference_output(prompt, max_tokens, stop)
        return request

    def set_limits(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.scheduler.limits = self.rules.limits = Limits(max_num_seqs, max_num_batched_tokens)

    def set_rates(self, rates: SwapRates | None) -> None:
        self.scheduler.rates = self.rules.rates = rates

    def set_class_weights(self, weights: dict[str, float]) -> None:
        self.scheduler.set_class_weights(weights)
        self.rules.queues.class_weights.update(weights)
        assert self.scheduler.class_weights == self.rules.queues.class_weights

    def cancel(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> bool:
        known = self.scheduler.cancel(request_id, reason)
        assert known == (request_id in self.rules.requests), "cancel says wrongly whether the request was there"
        if known:
            self._end(request_id, reason)
            self.rules.check_counters(self.scheduler)
        return known

    def step(self, fails: Fails = never) -> StepPlan | None:
        """One iteration. Where `fails` says so the runner breaks in it, and the requests that it was for end."""
        plan = self.plan = self.scheduler.schedule()
        if plan is None:
            assert not self.rules.requests, "no step though requests are there"
            return None
        self.rules.before(plan)
        token_ids = None
        if fails(plan):
            self.runner.fail(plan)
            self.rules.failed(plan)
        else:
            token_ids = self.runner.execute(plan)
            self.rules.after(plan)
        for start in plan.starts:
            self.slot_owner[start.slot] = start.request_id
            self.admission_order.append(start.request_id)
        computing = [self.slot_owner[slot] for slot in plan.decode_slots.tolist() + [c.slot for c in plan.prefills]]
        copied_out = [preemption.request_id for preemption in plan.preemptions if preemption.host_block_ids]
        if token_ids is None:
            assert [request.request_id for request in self.scheduler.fail(plan)] == computing + copied_out, (
                "fail does not return what a failed step may have left without its keys and values"
            )
            for request_id in computing + copied_out:
                self.cancel(request_id, FinishReason.ERROR)
            return plan
        complete = set()
        for slot, token in zip(plan.sampled_slots.tolist(), token_ids.tolist(), strict=True):
            request_id = self.slot_owner[slot]
            output, expected = self.outputs[request_id], self.expected[request_id]
            assert token == expected[len(output)], f"request {request_id} generates another token than alone"
            output.append(token)
            if len(output) == len(expected):
                complete.add(request_id)
        ended = set()
        for request in self.scheduler.update(plan, token_ids):
            assert request.finish_reason is not None
            ended.add(request.request_id)
            stopped = self.outputs[request.request_id][-1] in request.sampling.stop_token_ids
            assert request.finish_reason == (FinishReason.STOP if stopped else FinishReason.LENGTH)
            self._end(request.request_id, request.finish_reason)
        assert ended == complete, "requests must end with their last token, and no others"
        self.rules.check_counters(self.scheduler)
        return plan

    def run(self, most_steps: int = 10_000) -> int:
        """Steps until nothing is left."""
        for steps in range(most_steps):
            if self.step() is None:
                return steps
        raise AssertionError(f"not done after {most_steps} steps")

    def _end(self, request_id: int, reason: FinishReason) -> None:
        self.finished[request_id] = reason
        self.rules.ended(request_id)
        del self.expected[request_id]

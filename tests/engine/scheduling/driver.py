"""Drives the real scheduler with the model runner and collects what each request generates."""

from __future__ import annotations

import numpy as np

from inflight_engine.request import FinishReason, Request, SamplingParams
from inflight_engine.scheduling.limits import Limits
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.scheduler import Scheduler, SchedulerConfig
from tests.engine.scheduling.model_runner import ModelRunner


class Driver:
    def __init__(
        self,
        *,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 16,
        num_blocks: int = 16,
        block_size: int = 4,
        max_model_len: int = 64,
        kv_headroom: float = 0.0,
    ) -> None:
        capacity = Limits(max_num_seqs, max_num_batched_tokens)
        self.scheduler = Scheduler(SchedulerConfig(capacity, num_blocks, block_size, max_model_len, kv_headroom))
        self.runner = ModelRunner(num_blocks, block_size)
        self.runner.limits = capacity
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, FinishReason] = {}
        self.admission_order: list[int] = []
        self.slot_owner: dict[int, int] = {}

    def add(self, request_id: int, prompt: list[int], max_tokens: int, stop: tuple[int, ...] = ()) -> Request:
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
        request = Request(request_id, np.array(prompt, np.int32), sampling, arrival_time=0.0)
        self.scheduler.add(request)
        self.outputs[request_id] = []
        return request

    def set_limits(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.scheduler.limits = self.runner.limits = Limits(max_num_seqs, max_num_batched_tokens)

    def cancel(self, request_id: int) -> bool:
        known = self.scheduler.cancel(request_id, FinishReason.ABORT)
        if known:
            self.finished[request_id] = FinishReason.ABORT
        return known

    def step(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        if plan is None:
            return None
        for start in plan.starts:
            self.slot_owner[start.slot] = start.request_id
            self.admission_order.append(start.request_id)
        token_ids = self.runner.execute(plan)
        for slot, token in zip(plan.sampled_slots.tolist(), token_ids.tolist(), strict=True):
            self.outputs[self.slot_owner[slot]].append(token)
        for request in self.scheduler.update(plan, token_ids):
            assert request.finish_reason is not None
            self.finished[request.request_id] = request.finish_reason
        return plan

    def run(self, most_steps: int = 10_000) -> int:
        """Steps until nothing is left."""
        for steps in range(most_steps):
            if self.step() is None:
                return steps
        raise AssertionError(f"not done after {most_steps} steps")

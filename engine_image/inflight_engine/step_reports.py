"""Reports of steps to the API process."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from inflight_cost.model import StepWork
from inflight_engine.behind import Behind
from inflight_engine.messages import Admission, Finished, StepReport, StepStats
from inflight_engine.output import StepOutput
from inflight_engine.request import ForcedRun, Request
from inflight_engine.scheduling.plan import Slots, StepPlan
from inflight_engine.scheduling.scheduler import Scheduler

_NO_WORK = StepWork(0, 0, 0, 0, 0)


class StepReports:
    """Makes the reports of an engine. The argument `ended` is always the requests whose end is not reported yet.

    Attributes:
        num_out_of_memory: as in `StepStats`; the engine counts.
        behind: what is behind host memory; None: there is nothing.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.num_out_of_memory = 0
        self.behind: Behind | None = None
        self._scheduler = scheduler
        self._slots: Slots | None = None
        self._slots_bytes = b""

    def outside_steps(self, ended: list[Finished]) -> StepReport:
        """Return a report without a step."""
        return StepReport(-1, [], b"", b"", [], ended, self._stats(_NO_WORK, 0.0, 0.0))

    def failed(self, plan: StepPlan, admitted: list[Admission], ended: list[Finished]) -> StepReport:
        """Return the report of a step without tokens."""
        stats = self._stats(_NO_WORK, 0.0, 0.0)
        return StepReport(plan.step, admitted, b"", b"", [], ended, stats, preempted=_preempted(plan))

    def of(
        self,
        plan: StepPlan,
        work: StepWork,
        admitted: list[Admission],
        output: StepOutput,
        forced: Sequence[ForcedRun],
        discarded: Set[int],
        ended: list[Finished],
        *,
        step_seconds: float,
        schedule_seconds: float,
    ) -> StepReport:
        """Return the report of a step that was taken in.

        Args:
            forced: tokens that follow those of the step.
            discarded: slots whose request ended while the step was in flight, or because its part failed.
            step_seconds, schedule_seconds: as in `StepStats`.
        """
        slots, token_ids, logprobs = plan.sampled_slots, output.token_ids, output.logprobs
        if discarded:
            kept = ~np.isin(slots, list(discarded))
            slots, token_ids = slots[kept], token_ids[kept]
            logprobs = [each for each in logprobs if each.slot not in discarded]
        if forced:
            slots = np.concatenate([slots, *(np.full(len(run.token_ids), run.slot) for run in forced)])
            token_ids = np.concatenate([token_ids, *(run.token_ids for run in forced)])
        prompts = [each for each in output.prompt_logprobs if each.slot not in discarded]
        if slots is not self._slots:  # the same object in steady decode
            self._slots, self._slots_bytes = slots, slots.astype(np.int32).tobytes()
        stats = self._stats(work, step_seconds, schedule_seconds)
        slots_bytes = self._slots_bytes
        tokens = token_ids.tobytes()
        pooled = [each for each in output.pooled if each.slot not in discarded]
        return StepReport(
            plan.step, admitted, slots_bytes, tokens, logprobs, ended, stats, prompts, _preempted(plan), pooled
        )

    def _stats(self, work: StepWork, step_seconds: float, schedule_seconds: float) -> StepStats:
        scheduler = self._scheduler
        return StepStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            waiting_prompt_tokens=scheduler.num_uncomputed_tokens,
            kv_usage=scheduler.kv_usage,
            num_preemptions=scheduler.preemptor.num_preemptions,
            num_tier_blocks=scheduler.offload.usage(),
            prefix_queries=scheduler.admission.prefix_queries,
            prefix_hits=scheduler.admission.prefix_hits,
            num_prefill_tokens=int(work.prefill_tokens),
            num_decode_tokens=int(work.decode_seqs),
            step_seconds=step_seconds,
            schedule_seconds=schedule_seconds,
            decode_kv_tokens=int(work.decode_kv_tokens),
            num_out_of_memory=self.num_out_of_memory,
            prefill_context_tokens=int(work.prefill_context_tokens),
            copied_tokens=int(work.copied_tokens),
            num_forced_tokens=scheduler.num_forced_tokens,
            num_stored_blocks=scheduler.offload.num_stored,
            num_loaded_blocks=scheduler.offload.num_loaded,
            num_failed_loads=scheduler.offload.num_failed,
            **({} if self.behind is None else self.behind.stats()),
        )


def _preempted(plan: StepPlan) -> list[int]:
    return [each.request_id for each in plan.preemptions]


def finished(request: Request) -> Finished:
    """Return the report of a request that has ended."""
    if request.finish_reason is None:
        raise AssertionError(f"request {request.request_id} has not ended")
    return Finished(request.request_id, request.finish_reason)

"""Counts of requests and steps since the start of the server: plain numbers, updated on events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString

from inflight_cost.model import TERMS, CostModel, StepWork
from inflight_engine import buckets
from inflight_engine.messages import StepStats
from inflight_engine.request import FinishReason
from inflight_engine.server.requests.generation import Generation
from inflight_settings.scheduling import ServiceClass


class Histogram:
    """Counts per bucket and their sum, in Prometheus' sense (a bucket holds what is at most its bound).

    prometheus-client's own takes a lock and walks the bounds for every observation; the tokens of one decode step all
    have the same inter-token latency, so here they are one call.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: increasing, without infinity."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> Iterator[tuple[str, float]]:
        """`le` and the cumulative count, ending with +Inf."""
        bounds = (*self._bounds, float("inf"))
        return zip(map(floatToGoString, bounds), map(float, accumulate(self._counts)), strict=True)


REJECTIONS = ("queue_full", "class_queue_full", "queue_tokens", "shed", "draining", "not_ready", "never_fits")
"""Reasons of rejections: 400 for the last, 503 for the others."""

_PROCESS_COUNTERS = (
    "num_preemptions",
    "prefix_queries",
    "prefix_hits",
    "num_out_of_memory",
    "num_forced_tokens",
    "num_stored_blocks",
    "num_loaded_blocks",
    "num_failed_loads",
    "num_disk_stored",
    "num_disk_loaded",
    "num_disk_failed",
    "num_disk_dropped",
    "num_disk_slower",
    "num_disk_stalled",
    "num_disk_full",
    "num_disk_late",
    "num_peer_loaded",
    "num_peer_failed",
    "num_peer_late",
)
"""Counters of `StepStats` that begin at zero in each engine process."""

CURVE = "curve"
"""The term of the predicted seconds that `CostModel.curve` adds."""


class StepParts:
    """Sums over all steps, by term.

    Attributes:
        work: steps, and each number of `StepWork`.
        predicted_s: seconds by the cost model in force at each step; steps before the first fit add nothing.
    """

    def __init__(self) -> None:
        self.work = dict.fromkeys(TERMS, 0.0)
        self.predicted_s = dict.fromkeys((*TERMS, CURVE), 0.0)

    def count(self, work: StepWork, cost: CostModel | None) -> None:
        """Add one step."""
        for (term, field), amount in zip(TERMS.items(), (1, *work), strict=True):
            self.work[term] += amount
            if cost is not None:
                self.predicted_s[term] += getattr(cost, field) * amount
        if cost is not None:
            self.predicted_s[CURVE] += cost.on_curve(work.decode_seqs + work.prefill_tokens)


class ClassCounts:
    """Requests of one class that ended, excluding aborted requests.

    Args:
        ttft_per_token: seconds that each token of a prompt adds to the class's target.
    """

    def __init__(self, service_class: ServiceClass, ttft_per_token: float) -> None:
        self.service_class = service_class
        self._ttft_per_token = ttft_per_token
        self.finished = self.ttft_met = self.tpot_met = 0

    def count(self, generation: Generation) -> None:
        """Add a request that has just ended."""
        if generation.finish_reason is FinishReason.ABORT:
            return
        self.finished += 1
        target = self.service_class.ttft_target
        if target is not None:
            target += self._ttft_per_token * len(generation.request.prompt_token_ids)
        self.ttft_met += _within(generation.time_to_first_token, target)
        self.tpot_met += _within(generation.time_per_output_token, self.service_class.tpot_target)


def _within(seconds: float | None, target: float | None) -> bool:
    return seconds is not None and target is not None and seconds <= target


class Counts:
    """Single-threaded: runs in the event loop.

    Args:
        ttft_per_token: seconds that each token of a prompt adds to the target of its class.

    Attributes:
        prompt_tokens: tokens of prompts whose requests have their first token.
    """

    def __init__(self, classes: Iterable[ServiceClass], ttft_per_token: float = 0.0) -> None:
        self.classes = {each.name: ClassCounts(each, ttft_per_token) for each in classes}
        self.step_parts = StepParts()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cancelled = 0
        self.engine_restarts = 0
        self.resubmitted = 0
        self.finished = dict.fromkeys(FinishReason, 0)
        self.rejections = dict.fromkeys(REJECTIONS, 0)
        self.time_to_first_token = Histogram(buckets.TIME_TO_FIRST_TOKEN)
        self.inter_token_latency = Histogram(buckets.INTER_TOKEN)
        self.time_per_output_token = Histogram(buckets.TIME_PER_OUTPUT_TOKEN)
        self.end_to_end = Histogram(buckets.END_TO_END)
        self.queue_time = Histogram(buckets.QUEUE_TIME)
        self.prefill_time = Histogram(buckets.END_TO_END)
        self.decode_time = Histogram(buckets.END_TO_END)
        self.inference_time = Histogram(buckets.END_TO_END)
        self.prompt_length = Histogram(buckets.REQUEST_TOKENS)
        self.generation_length = Histogram(buckets.REQUEST_TOKENS)
        self.max_tokens = Histogram(buckets.REQUEST_TOKENS)
        self.num_samples = Histogram(buckets.REQUEST_N)
        self.step_tokens = Histogram(buckets.STEP_TOKENS)
        self.step_duration = Histogram(buckets.STEP_DURATION)
        self.schedule_duration = Histogram(buckets.SCHEDULE_DURATION)
        self._before = dict.fromkeys(_PROCESS_COUNTERS, 0)

    def step(self, stats: StepStats, cost: CostModel | None) -> None:
        """Count one step; a report without a step has no computed tokens. `cost`: the model in force."""
        tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        if tokens:
            self.step_tokens.observe(tokens)
            self.step_duration.observe(stats.step_seconds)
            self.schedule_duration.observe(stats.schedule_seconds)
            self.step_parts.count(stats.work, cost)

    def ended(self, generation: Generation) -> None:
        """Count a request that has just ended, for any reason."""
        reason, timings = generation.finish_reason, generation.timings
        assert reason is not None
        self.finished[reason] += 1
        self.classes[generation.request.scheduling.service_class].count(generation)
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and timings.finished is not None:
            self.end_to_end.observe(timings.finished - timings.arrived)
            if generation.time_per_output_token is not None:
                self.time_per_output_token.observe(generation.time_per_output_token)
            self._observe_lengths(generation)

    def _observe_lengths(self, generation: Generation) -> None:
        request, timings, last = generation.request, generation.timings, generation.last_token_at
        self.prompt_length.observe(len(request.prompt_token_ids))
        self.generation_length.observe(len(generation.token_ids))
        self.max_tokens.observe(request.sampling.max_tokens)
        if timings.admitted is not None and timings.first_token is not None:
            self.prefill_time.observe(timings.first_token - timings.admitted)
            self.decode_time.observe(last - timings.first_token)
            self.inference_time.observe(last - timings.admitted)

    def engine_lost(self, stats: StepStats) -> None:
        """`stats`: the last of an engine process; the next one counts from zero again."""
        self._before = self.since_start(stats)

    def since_start(self, stats: StepStats) -> dict[str, int]:
        """Counters of all of this server's engine processes together. `stats`: the latest of the one that runs."""
        return {name: before + getattr(stats, name) for name, before in self._before.items()}

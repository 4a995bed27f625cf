"""Counters for /metrics: plain numbers updated on events; gauges are computed on each scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.registry import Collector

from inflight_cost.backlog import backlog_seconds
from inflight_cost.model import StepWork
from inflight_engine import buckets
from inflight_engine.cost_fit.online import GOOD_ERROR
from inflight_engine.messages import EngineReady, StepCost, StepStats
from inflight_engine.output_lengths import OutputLengths
from inflight_engine.request import FinishReason
from inflight_engine.server.admission.wait import Slots
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.telemetry.class_metrics import ClassCounts
from inflight_engine.server.telemetry.families import Families
from inflight_engine.server.telemetry.histogram import Histogram
from inflight_engine.server.telemetry.page import add_engine_families
from inflight_engine.server.telemetry.span_counts import SpanCounts
from inflight_engine.server.telemetry.step_parts import StepParts
from inflight_settings.limits import Limits
from inflight_settings.scheduling import ServiceClass

NO_STATS = StepStats(0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
"""Before the first step."""

_NEWEST_STEP = 0.05
"""Weight of the latest step in the average."""

_ESTIMATE_SECONDS = 1.0
"""Between two estimates of the mean output for predictions."""

REJECTIONS = ("queue_full", "class_queue_full", "queue_tokens", "shed", "draining", "not_ready", "never_fits")
"""Reasons of rejections: 400 for the last, 503 for the others."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """Current values.

    Attributes:
        limits, ready: None while the model loads.
        revision: of the limits.
        waiting: requests without a slot, including those not yet received by the engine.
        queued_by_class: requests that were never admitted, by class.
        queued_tokens: their prompt tokens.
    """

    stats: StepStats
    limits: Limits | None
    ready: EngineReady | None
    waiting: int
    queued_by_class: Mapping[str, int]
    queued_tokens: int
    draining: bool
    revision: int = 0

    @property
    def waiting_tokens(self) -> int:
        """Uncomputed prompt tokens: the engine's count after its latest step, or the API process's if newer."""
        return max(self.stats.waiting_prompt_tokens, self.queued_tokens)


class SinceStart(NamedTuple):
    """Counters of the engine process, summed over all of this server's engine processes."""

    num_preemptions: int
    prefix_queries: int
    prefix_hits: int
    num_out_of_memory: int


class EngineMetrics(Collector):
    """Numbers of one engine. Single-threaded: runs in the event loop.

    Args:
        model_name: label of every series.
        classes: the service classes.
        gauges: called at each scrape.
        running: called at each scrape for the requests that are receiving tokens.
        ttft_per_token: seconds that each token of a prompt adds to the target of its class.
    """

    def __init__(
        self,
        model_name: str,
        classes: Iterable[ServiceClass],
        gauges: Callable[[], Gauges],
        running: Callable[[], Iterable[Generation]] = tuple,
        ttft_per_token: float = 0.0,
    ) -> None:
        self._model_name = model_name
        self._gauges = gauges
        self._running = running
        self._decoding = StepWork(0, 0, 0, 0)
        """Decodes of the latest step."""
        self._classes = {service_class.name: ClassCounts(service_class, ttft_per_token) for service_class in classes}
        self._before = SinceStart(0, 0, 0, 0)
        self.step_cost: StepCost | None = None
        self.spans: SpanCounts | None = None
        self.step_parts = StepParts()
        self.output_lengths = OutputLengths()
        self._mean, self._estimate_at = 0.0, 0.0
        self._step_seconds = 0.0
        """Of a step, on average of late."""
        self.arrived_requests = self.arrived_prompt_tokens = self.arrived_prompt_tokens_squared = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cancelled = 0
        self.engine_restarts = 0
        self.resubmitted = 0
        self.finished = dict.fromkeys(FinishReason, 0)
        self.rejections = dict.fromkeys(REJECTIONS, 0)
        self.time_to_first_token = Histogram(buckets.TIME_TO_FIRST_TOKEN)
        self.inter_token_latency = Histogram(buckets.INTER_TOKEN)
        self.time_per_output_token = Histogram(buckets.INTER_TOKEN)
        self.end_to_end = Histogram(buckets.END_TO_END)
        self.queue_time = Histogram(buckets.QUEUE_TIME)
        self.step_tokens = Histogram(buckets.STEP_TOKENS)
        self.step_duration = Histogram(buckets.STEP_DURATION)
        self.schedule_duration = Histogram(buckets.SCHEDULE_DURATION)

    def step(self, stats: StepStats) -> None:
        """Count one step; a report without a step has no computed tokens."""
        tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        if tokens:
            self.step_tokens.observe(tokens)
            self.step_duration.observe(stats.step_seconds)
            self.schedule_duration.observe(stats.schedule_seconds)
            self._step_seconds += (stats.step_seconds - self._step_seconds) * _NEWEST_STEP
            self._decoding = StepWork(stats.num_decode_tokens, 0, stats.decode_kv_tokens, 0)
            self.step_parts.count(stats.work, None if self.step_cost is None else self.step_cost.model)

    def arrived(self, num_prompt_tokens: int) -> None:
        """Count an accepted request."""
        self.arrived_requests += 1
        self.arrived_prompt_tokens += num_prompt_tokens
        self.arrived_prompt_tokens_squared += num_prompt_tokens**2

    def seconds_for(self, num_tokens: float, num_requests: float, now: Gauges) -> float:
        """Seconds until a number of waiting requests have a slot, and a number of prompt tokens are computed beside
        decodes. Without an accurate model of steps, only slots count, by recent step durations."""
        limits, ready = now.limits, now.ready
        if limits is None or ready is None:
            return 0.0
        slots = Slots(
            limits.max_num_seqs,
            now.stats.num_running,
            ready.runner.num_cache_tokens,
            self.arrived_prompt_tokens / max(1, self.arrived_requests),
            self._mean_output(),
        )
        steps = slots.steps_until_free(num_requests)
        if self.step_cost is None or self.step_cost.error > GOOD_ERROR:
            return steps * self._step_seconds
        # A prompt's tokens attend to half of it on average, and longer prompts have more of the tokens.
        attended = self.arrived_prompt_tokens_squared / max(1, self.arrived_prompt_tokens) / 2
        cost, budget = self.step_cost.model, limits.max_num_batched_tokens
        seconds = backlog_seconds(cost, num_tokens, attended, self._decoding, budget)
        # Slots get free while prompts are computed, and steps that only decode follow where that is not enough.
        prefill_steps = num_tokens / max(1.0, budget - self._decoding.decode_seqs)
        return seconds + max(0.0, steps - prefill_steps) * cost.seconds(self._decoding)

    def _mean_output(self) -> float:
        """Tokens; 0 before any output is complete. Estimated now and then: that takes about a millisecond."""
        now = time.monotonic()
        if now >= self._estimate_at:
            self._estimate_at = now + _ESTIMATE_SECONDS
            for generation in self._running():
                self._count_output(generation)
            estimate = self.output_lengths.estimate()
            self._mean = 0.0 if estimate is None else estimate.mean
        return self._mean

    def ended(self, generation: Generation) -> None:
        """Count a request that has just ended, for any reason."""
        reason, timings = generation.finish_reason, generation.timings
        assert reason is not None
        self.finished[reason] += 1
        self._classes[generation.request.scheduling.service_class].count(generation)
        self._count_output(generation)
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and timings.finished is not None:
            self.output_lengths.ended(len(generation.token_ids))
            self.end_to_end.observe(timings.finished - timings.arrived)
            if generation.time_per_output_token is not None:
                self.time_per_output_token.observe(generation.time_per_output_token)

    @property
    def classes(self) -> list[ClassCounts]:
        return [*self._classes.values()]

    def engine_gone(self, stats: StepStats) -> None:
        """`stats`: the last of an engine process; the next one counts from zero again."""
        self._before = self.since_start(stats)

    def since_start(self, stats: StepStats) -> SinceStart:
        """`stats`: the latest of the engine process that runs."""
        before = self._before
        return SinceStart(
            before.num_preemptions + stats.num_preemptions,
            before.prefix_queries + stats.prefix_queries,
            before.prefix_hits + stats.prefix_hits,
            before.num_out_of_memory + stats.num_out_of_memory,
        )

    def collect(self) -> list[Metric]:
        """All families."""
        return self._page(None).collect()

    def text(self, names: Collection[str] | None = None) -> bytes:
        """The /metrics page. `names`: as in `Families`."""
        return self._page(names).text()

    def _page(self, names: Collection[str] | None) -> Families:
        for generation in self._running():
            self._count_output(generation)
        self.output_lengths.forget(time.monotonic())
        page = Families(self._model_name, names)
        add_engine_families(page, self, self._gauges())
        return page

    def _count_output(self, generation: Generation) -> None:
        length = len(generation.token_ids)
        self.output_lengths.generated(generation.counted_tokens, length)
        generation.counted_tokens = length

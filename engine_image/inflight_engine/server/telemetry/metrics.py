"""Counters for /metrics: plain numbers updated on events; gauges are computed on each scrape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.registry import Collector

from inflight_engine import buckets
from inflight_engine.messages import EngineReady, StepStats
from inflight_engine.request import FinishReason
from inflight_engine.scheduling.config import ServiceClass
from inflight_engine.scheduling.limits import Limits
from inflight_engine.server.admission.demand import Demand
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.telemetry.class_metrics import ClassCounts
from inflight_engine.server.telemetry.families import Families
from inflight_engine.server.telemetry.histogram import Histogram
from inflight_engine.server.telemetry.page import add_engine_families
from inflight_engine.server.telemetry.span_counts import SpanCounts
from inflight_engine.server.telemetry.step_parts import StepParts

REJECTIONS = ("queue_full", "class_queue_full", "queue_tokens", "shed", "draining", "not_ready", "never_fits")
"""Reasons of rejections: 400 for the last, 503 for the others."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """Current values.

    Attributes:
        limits, ready: None while the model loads.
        waiting: requests without a slot, including those not yet received by the engine.
        waiting_by_class: requests that were never admitted, by class.
        waiting_tokens: uncomputed prompt tokens of waiting requests and requests in prefill.
        predicted_seconds: until all waiting requests have a slot and their prompts are computed.
    """

    stats: StepStats
    limits: Limits | None
    ready: EngineReady | None
    waiting: int
    waiting_by_class: Mapping[str, int]
    waiting_tokens: int
    predicted_seconds: float
    draining: bool


class SinceStart(NamedTuple):
    """Counters of the engine process, summed over all of this server's engine processes."""

    num_preemptions: int
    prefix_queries: int
    prefix_hits: int
    num_out_of_memory: int


class EngineMetrics(Collector):
    """Observes the requests of one engine. Single-threaded: runs in the event loop.

    Args:
        model_name: label of every series.
        classes: the service classes.
        demand: measurements of admission, which are exported too.
        gauges: called at each scrape.
        ttft_per_token: seconds that each token of a prompt adds to the target of its class.
    """

    def __init__(
        self,
        model_name: str,
        classes: Iterable[ServiceClass],
        demand: Demand,
        gauges: Callable[[], Gauges],
        ttft_per_token: float = 0.0,
    ) -> None:
        self._model_name = model_name
        self.demand = demand
        self._gauges = gauges
        self._classes = {service_class.name: ClassCounts(service_class, ttft_per_token) for service_class in classes}
        self._before = SinceStart(0, 0, 0, 0)
        self.spans: SpanCounts | None = None
        self.step_parts = StepParts()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.num_cancelled = 0
        self.engine_restarts = 0
        self.num_resubmitted = 0
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
            cost = self.demand.step_cost
            self.step_parts.count(stats.work, None if cost is None else cost.model)

    def rejected(self, reason: str) -> None:
        self.rejections[reason] += 1

    def admitted(self, generation: Generation) -> None:
        timings = generation.timings
        assert timings.admitted is not None
        self.queue_time.observe(timings.admitted - timings.arrived)

    def first_token(self, generation: Generation) -> None:
        assert generation.time_to_first_token is not None
        self.time_to_first_token.observe(generation.time_to_first_token)
        self.prompt_tokens += len(generation.request.prompt_token_ids)

    def inter_token(self, seconds: float, count: int = 1) -> None:
        self.inter_token_latency.observe(seconds, count)

    def tokens(self, count: int) -> None:
        self.generation_tokens += count

    def cancelled(self) -> None:
        self.num_cancelled += 1

    def ended(self, generation: Generation) -> None:
        reason, timings = generation.finish_reason, generation.timings
        assert reason is not None
        self.finished[reason] += 1
        self._classes[generation.request.scheduling.service_class].count(generation)
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and timings.finished is not None:
            self.end_to_end.observe(timings.finished - timings.arrived)
            if generation.time_per_output_token is not None:
                self.time_per_output_token.observe(generation.time_per_output_token)

    @property
    def classes(self) -> list[ClassCounts]:
        return [*self._classes.values()]

    def engine_lost(self, stats: StepStats) -> None:
        self._before = self.since_start(stats)

    def resubmitted(self, count: int) -> None:
        self.engine_restarts += 1
        self.num_resubmitted += count

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
        page = Families(self._model_name, names)
        add_engine_families(page, self, self._gauges())
        return page

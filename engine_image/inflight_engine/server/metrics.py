"""Everything /metrics shows: vLLM's names where vLLM has the thing, `inflight_*` where it has not.

Counters and histograms are plain numbers changed as things happen; gauges are read when Prometheus asks. Names, types
and meanings of `vllm:*` are those of vLLM's v1 engine, https://docs.vllm.ai/en/latest/design/metrics.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from inflight_engine.messages import EngineReady, StepStats
from inflight_engine.request import FinishReason
from inflight_engine.scheduling.config import ServiceClass
from inflight_engine.scheduling.limits import Limits
from inflight_engine.server import buckets
from inflight_engine.server.class_metrics import ClassCounts, class_families
from inflight_engine.server.generation import Generation
from inflight_engine.server.histogram import Histogram
from inflight_engine.server.throughput import Throughput

NO_STATS = StepStats(0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
"""Before the first step."""

REJECTIONS = ("queue_full", "class_queue_full", "queue_tokens", "draining", "not_ready", "never_fits")
"""Why a request was not taken: 400 for the last, 503 for the others."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is true at this moment.

    Attributes:
        limits, ready: None while the model loads.
        waiting: requests without a slot, those not yet seen by the engine included.
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


class EngineMetrics(Collector):
    """Numbers of one engine. Single-threaded: everything happens in the event loop.

    Args:
        model_name: label of every series.
        classes: the service classes.
        gauges: asked at each scrape.
    """

    def __init__(self, model_name: str, classes: Iterable[ServiceClass], gauges: Callable[[], Gauges]) -> None:
        self._model_name = model_name
        self._gauges = gauges
        self._classes = {service_class.name: ClassCounts(service_class) for service_class in classes}
        self.throughput = Throughput()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cancelled = 0
        self.finished = dict.fromkeys(FinishReason, 0)
        self.rejections = dict.fromkeys(REJECTIONS, 0)
        self.time_to_first_token = Histogram(buckets.TIME_TO_FIRST_TOKEN)
        self.inter_token_latency = Histogram(buckets.INTER_TOKEN)
        self.time_per_output_token = Histogram(buckets.INTER_TOKEN)
        self.end_to_end = Histogram(buckets.END_TO_END)
        self.queue_time = Histogram(buckets.QUEUE_TIME)
        self._step_tokens = Histogram(buckets.STEP_TOKENS)
        self._step_duration = Histogram(buckets.STEP_DURATION)
        self._schedule_duration = Histogram(buckets.SCHEDULE_DURATION)

    def step(self, stats: StepStats) -> None:
        """Count one step; a report that is not of a step has computed no tokens."""
        tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        if tokens:
            self._step_tokens.observe(tokens)
            self._step_duration.observe(stats.step_seconds)
            self._schedule_duration.observe(stats.schedule_seconds)
            self.throughput.add(stats)

    def ended(self, generation: Generation) -> None:
        """Count a request that has just ended, however it did."""
        reason, timings = generation.finish_reason, generation.timings
        assert reason is not None
        self.finished[reason] += 1
        self._classes[generation.request.scheduling.service_class].count(generation)
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and timings.finished is not None:
            self.end_to_end.observe(timings.finished - timings.arrived)
            if generation.time_per_output_token is not None:
                self.time_per_output_token.observe(generation.time_per_output_token)

    def predicted_queue_seconds(self, stats: StepStats, queued_tokens: int) -> float:
        """When all prompt tokens that wait now will have been computed, at the rate measured lately."""
        return self.throughput.seconds_for(waiting_tokens(stats, queued_tokens))

    def collect(self) -> Iterator[Metric]:
        now = self._gauges()
        yield from self._engine_state(now)
        yield from self._counters(now.stats)
        yield from self._histograms()
        yield from self._limits(now)
        yield from class_families(self._model_name, [*self._classes.values()], now.queued_by_class)

    def _engine_state(self, now: Gauges) -> Iterator[Metric]:
        stats = now.stats
        yield self._gauge("vllm:num_requests_running", "Requests that hold a slot.", stats.num_running)
        yield self._gauge(
            "vllm:num_requests_waiting", "Requests that wait for a slot, preempted ones included.", now.waiting
        )
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", stats.kv_usage)
        yield self._gauge(
            "inflight_swapped_blocks", "Blocks of host memory that hold swapped requests.", stats.num_swapped_blocks
        )
        if now.ready is not None:
            info = GaugeMetricFamily(
                "vllm:cache_config_info",
                "Shape of the KV cache: tokens in a block, and blocks.",
                labels=("model_name", "block_size", "num_gpu_blocks"),
            )
            info.add_metric((self._model_name, str(now.ready.block_size), str(now.ready.num_blocks)), 1)
            yield info
        yield self._gauge(
            "inflight_waiting_prompt_tokens",
            "Prompt tokens not yet computed, of waiting requests and of those in prefill.",
            waiting_tokens(stats, now.queued_tokens),
        )
        yield self._gauge(
            "inflight_predicted_queue_seconds",
            "Seconds until all prompt tokens that wait now are computed, at the rate of the latest steps with prefill.",
            self.predicted_queue_seconds(stats, now.queued_tokens),
        )
        yield self._gauge("inflight_draining", "1 from the moment the engine was told to drain.", float(now.draining))

    def _counters(self, stats: StepStats) -> Iterator[Metric]:
        yield self._counter("vllm:num_preemptions", "Times a request lost its slot to others.", stats.num_preemptions)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of requests whose prefill ended.", self.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", self.generation_tokens)
        yield self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries
        )
        yield self._counter("vllm:prefix_cache_hits", "Of them, tokens that were found there.", stats.prefix_hits)
        yield self._labelled(
            "vllm:request_success", "Requests that ended, by why.", "finished_reason", self.finished.items()
        )
        yield self._labelled(
            "inflight_admission_rejections", "Requests that were not taken, by why.", "reason", self.rejections.items()
        )
        yield self._counter(
            "inflight_requests_cancelled",
            "Requests ended before they were complete: client gone, timeout, or end of the drain.",
            self.cancelled,
        )

    def _histograms(self) -> Iterator[Metric]:
        for name, documentation, histogram in (
            ("vllm:time_to_first_token_seconds", "From arrival to the first token.", self.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Between two tokens of a request.", self.inter_token_latency),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean time per token after the first, of a finished request.",
                self.time_per_output_token,
            ),
            ("vllm:e2e_request_latency_seconds", "From arrival to the last token.", self.end_to_end),
            ("vllm:request_queue_time_seconds", "From arrival to a slot.", self.queue_time),
            ("vllm:iteration_tokens_total", "Tokens computed in a step.", self._step_tokens),
            ("inflight_step_duration_seconds", "One step, scheduling included.", self._step_duration),
            ("inflight_schedule_duration_seconds", "The scheduler's part of a step.", self._schedule_duration),
        ):
            family = HistogramMetricFamily(name, documentation, labels=("model_name",))
            family.add_metric((self._model_name,), list(histogram.buckets()), histogram.sum)
            yield family

    def _limits(self, now: Gauges) -> Iterator[Metric]:
        if now.limits is None or now.ready is None:
            return
        limits, capacity, stats = now.limits, now.ready.capacity, now.stats
        yield self._gauge("inflight_max_num_seqs", "Limit in force: requests with a slot.", limits.max_num_seqs)
        yield self._gauge("inflight_max_num_seqs_capacity", "What it may be raised to.", capacity.max_num_seqs)
        yield self._gauge(
            "inflight_max_num_batched_tokens", "Limit in force: tokens in a step.", limits.max_num_batched_tokens
        )
        yield self._gauge(
            "inflight_max_num_batched_tokens_capacity", "What it may be raised to.", capacity.max_num_batched_tokens
        )
        yield self._gauge(
            "inflight_runtime_config_revision", "Revision of the limits in force, as given with them.", limits.revision
        )
        empty = max(0, limits.max_num_seqs - stats.num_running)
        yield self._gauge(
            "inflight_slots_wasted_ratio",
            "Share of max_num_seqs without a request while requests wait, after the latest step.",
            empty / limits.max_num_seqs if stats.num_waiting else 0.0,
        )

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        """`name` without `_total`, which the exposition adds."""
        family = CounterMetricFamily(name, documentation, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

    def _labelled(self, name: str, documentation: str, label: str, values: Iterable[tuple[str, int]]) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=("model_name", label))
        for key, value in values:
            family.add_metric((self._model_name, str(key)), value)
        return family


def waiting_tokens(stats: StepStats, queued_tokens: int) -> int:
    """Prompt tokens not yet computed: the engine's count after its latest step, or ours where that is newer."""
    return max(stats.waiting_prompt_tokens, queued_tokens)

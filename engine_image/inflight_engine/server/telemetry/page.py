"""The /metrics page: vLLM's names for metrics that vLLM has, `inflight_*` for others.

Names, types and meanings of `vllm:*` are those of vLLM's v1 engine,
https://docs.vllm.ai/en/latest/design/metrics.html.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.registry import Collector

from inflight_contract import metrics as shared
from inflight_cost.model import TERMS
from inflight_engine.messages import Loading, StepCost
from inflight_engine.server.admission.demand import Demand, Load
from inflight_engine.server.admission.peer_reads import PeerReads
from inflight_engine.server.requests.counts import ClassCounts, Counts, StepParts
from inflight_engine.server.telemetry.exchange import SpanCounts
from inflight_engine.server.telemetry.families import Families
from inflight_engine.server.telemetry.process_memory import memory_families


@dataclass(frozen=True, slots=True)
class Gauges:
    """Current values.

    Attributes:
        waiting: requests that were never admitted, by class.
        revision: of the limits in force.
        asleep: the engine has given back its KV cache.
        loading: progress of the engine process's load; None if it does not say so.
    """

    load: Load
    waiting: Mapping[str, int]
    draining: bool
    revision: int = 0
    asleep: bool = False
    loading: Loading | None = None


HOST_TIER, DISK_TIER, PEER_TIER = "host", "disk", "peer"
"""Labels of the tiers in host memory and on a disk, and of other engines."""


_TIER_BYTES = (
    (
        "inflight_tier_stored_bytes",
        "Bytes of KV blocks copied to a tier behind the device.",
        "num_stored_blocks",
        "num_disk_stored",
        None,
    ),
    (
        "inflight_tier_loaded_bytes",
        "Bytes of KV blocks loaded from a tier, or read from other engines (peer).",
        "num_loaded_blocks",
        "num_disk_loaded",
        "num_peer_loaded",
    ),
)
_TIER_BLOCKS = (
    (
        "inflight_tier_hit_blocks",
        "KV blocks of requests that were found in a tier and loaded; from the disk to host memory.",
        "num_loaded_blocks",
        "num_disk_loaded",
    ),
    (
        "inflight_tier_failed_blocks",
        "KV blocks whose load failed, as they were not what was stored; their requests are computed anew.",
        "num_failed_loads",
        "num_disk_failed",
    ),
)
"""Counters by tier: name, documentation, and the counters of the engine in host memory and on a disk; for bytes
also those of other engines."""

_PEER_COUNTERS = (
    ("inflight_peer_loaded_blocks", "KV blocks read from other engines.", "num_peer_loaded"),
    (
        "inflight_peer_failed_reads",
        "Reads of KV blocks from other engines that failed; what they were for is computed.",
        "num_peer_failed",
    ),
    (
        "inflight_peer_late_requests",
        "Requests that compute KV blocks which another engine had, as not all came in time.",
        "num_peer_late",
    ),
)
"""Counters of `PeerReader` and its `TierLoads`: name, documentation, and the counter of the engine."""

_REFUSALS = ("slower", "stalled", "full", "late")
"""Reasons of `TierLoads`."""


class EngineMetrics(Collector):
    """The metrics of one engine.

    Args:
        model_name: label of every series.
        gauges: called at each scrape.

    Attributes:
        spans: None: no tracing.
        dropped_events: returns the batches of KV cache events that were dropped; None: there are no events.
        tiers: labels of the tiers that the engine has behind the device. Others have no series.
        spare_pid: returns the number of the spare process; None: there is none.
        peer_reads: of weights; None: none are shared.
    """

    def __init__(self, model_name: str, counts: Counts, demand: Demand, gauges: Callable[[], Gauges]) -> None:
        self.tiers: Collection[str] = (HOST_TIER, DISK_TIER)
        self.spans: SpanCounts | None = None
        self.dropped_events: Callable[[], int] | None = None
        self.spare_pid: Callable[[], int | None] = lambda: None
        self.peer_reads: PeerReads | None = None
        self._model_name = model_name
        self._counts = counts
        self._demand = demand
        self._gauges = gauges

    def collect(self) -> list[Metric]:
        """All families."""
        return self._page(None).collect()

    def text(self, names: Collection[str] | None = None) -> bytes:
        """The /metrics page. `names`: as in `Families`."""
        return self._page(names).text()

    def _page(self, names: Collection[str] | None) -> Families:
        """The families, in the order of the page."""
        page, counts, demand, now = Families(self._model_name, names), self._counts, self._demand, self._gauges()
        _engine_state(page, demand, now)
        _tiers(page, counts, now.load, self.tiers)
        _counters(page, counts, now.load)
        _histograms(page, counts)
        _limits(page, now.load, now.revision)
        _demand(page, demand)
        _step_cost(page, demand.step_cost)
        _traces(page, self.spans)
        if self.peer_reads is not None:
            _peers(page, self.peer_reads, now.load)
        if self.dropped_events is not None:
            page.counter(
                "inflight_kv_event_batches_dropped",
                "Batches of KV cache events that were not published, as too many waited. Consumers get AllBlocksCleared"
                " after them.",
                self.dropped_events(),
            )
        _step_parts(page, counts.step_parts)
        _classes(page, counts.classes.values(), now.waiting)
        memory_families(page, self.spare_pid())
        return page


def _engine_state(page: Families, demand: Demand, now: Gauges) -> None:
    load = now.load
    stats = load.stats
    page.gauge("vllm:num_requests_running", "Running requests (with a slot).", stats.num_running)
    page.gauge("vllm:num_requests_waiting", "Requests waiting for a slot, including preempted requests.", load.waiting)
    page.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", stats.kv_usage)
    if load.ready is not None:
        runner = load.ready.runner
        page.gauges(
            "vllm:cache_config_info",
            "Shape of the KV cache: tokens in a block, and number of blocks.",
            ("block_size", "num_gpu_blocks"),
            [((str(runner.block_size), str(runner.num_blocks)), 1)],
        )
        if runner.digest:
            page.gauges(
                "inflight_model_info",
                "Version of the model: the commit of one from the hub, else a digest of its files.",
                ("digest",),
                [((runner.digest,), 1)],
            )
        if runner.cache_problem:
            page.gauges(
                "inflight_model_cache_info",
                "There is a model cache, and the weights were read from their source nevertheless: the reason.",
                ("reason",),
                [((runner.cache_problem,), 1)],
            )
        page.gauge(
            "inflight_weights_seconds",
            "Seconds that the engine process took to read the weights of the model into memory.",
            runner.weights_seconds,
        )
        page.gauge(*shared.KV_CACHE_TOKENS, runner.num_cache_tokens)
    if now.loading is not None:
        page.gauge(
            "inflight_loading_read_bytes",
            "Bytes of the weights that the engine process has read.",
            now.loading.read_bytes,
        )
        page.gauge(
            "inflight_loading_total_bytes",
            "Bytes of the weights; no series for GGUF, transformers' modules and weights that outlived a process.",
            now.loading.total_bytes,
        )
        page.gauge(
            "inflight_loading_seconds",
            "Seconds from the begin of the reading to the latest report of it.",
            now.loading.seconds,
        )
    page.gauge(*shared.WAITING_PROMPT_TOKENS, load.waiting_tokens)
    page.gauge(
        "inflight_predicted_queue_seconds",
        "Predicted seconds until all waiting requests have a slot and their prompts are computed, from the step cost "
        "and the mean output.",
        demand.predicted_seconds(load),
    )
    page.gauge(*shared.DRAINING, float(now.draining))
    page.gauge(
        "inflight_asleep",
        "1 while the memory of the KV cache is given back, until the next request.",
        float(now.asleep),
    )


def _tiers(page: Families, counts: Counts, load: Load, tiers: Collection[str]) -> None:
    stats, since_start = load.stats, counts.since_start(load.stats)

    def rows(host: float, disk: float, peer: float | None = None) -> list[tuple[tuple[str], float]]:
        found = [((tier,), value) for tier, value in ((HOST_TIER, host), (DISK_TIER, disk)) if tier in tiers]
        return found if peer is None or HOST_TIER not in tiers else [*found, ((PEER_TIER,), peer)]

    page.gauges(
        "inflight_tier_blocks",
        "KV blocks that a tier behind the device holds.",
        ("tier",),
        rows(stats.num_tier_blocks, stats.num_disk_blocks),
    )
    if load.ready is not None:  # While another engine process starts its blocks are not known, and 0 would be a reset.
        runner = load.ready.runner
        block_bytes = runner.kv_bytes_per_token * runner.block_size
        speed_of_host = (runner.copy_tokens_per_second or 0.0) * runner.kv_bytes_per_token
        speed_of_disk, speed_of_peers = (
            block_bytes / seconds if seconds else 0.0
            for seconds in (stats.disk_seconds_per_block, stats.peer_seconds_per_block)
        )
        page.gauges(
            "inflight_tier_bytes_per_second",
            "Speed at which a tier is loaded, or other engines are read (peer), as measured; 0: not yet.",
            ("tier",),
            rows(speed_of_host, speed_of_disk, speed_of_peers),
        )
        for name, documentation, host, disk, peer in _TIER_BYTES:
            read = None if peer is None else since_start[peer] * block_bytes
            moved = rows(since_start[host] * block_bytes, since_start[disk] * block_bytes, read)
            page.counters(name, documentation, ("tier",), moved)
    for name, documentation, host, disk in _TIER_BLOCKS:
        page.counters(name, documentation, ("tier",), rows(since_start[host], since_start[disk]))
    if HOST_TIER in tiers:
        for name, documentation, peer in _PEER_COUNTERS:
            page.counter(name, documentation, since_start[peer])
    if DISK_TIER in tiers:
        page.counters(
            "inflight_tier_dropped_blocks",
            "KV blocks that were not written to a tier: too many waited, or it failed.",
            ("tier",),
            [((DISK_TIER,), since_start["num_disk_dropped"])],
        )
        page.counters(
            "inflight_disk_refused_loads",
            "Requests that compute KV blocks which the disk has, by reason: that takes less time (slower), the disk "
            "hangs (stalled), host memory waits for as much as it may (full), not all came in time (late).",
            ("reason",),
            [((reason,), since_start[f"num_disk_{reason}"]) for reason in _REFUSALS],
        )


def _counters(page: Families, counts: Counts, load: Load) -> None:
    since_start = counts.since_start(load.stats)
    page.counter("vllm:num_preemptions", "Preemptions of requests.", since_start["num_preemptions"])
    page.counter("vllm:prompt_tokens", "Prompt tokens of requests that completed prefill.", counts.prompt_tokens)
    page.counter("vllm:generation_tokens", "Generated tokens.", counts.generation_tokens)
    page.counter(
        "inflight_forced_tokens",
        "Generated tokens that were not sampled, as a grammar left no other.",
        since_start["num_forced_tokens"],
    )
    page.counter(
        "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", since_start["prefix_queries"]
    )
    page.counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", since_start["prefix_hits"])
    page.counter(
        "inflight_step_out_of_memory",
        "Steps for which device memory did not suffice; they were split or failed.",
        since_start["num_out_of_memory"],
    )
    page.counters(
        "vllm:request_success",
        "Finished requests by reason.",
        ("finished_reason",),
        [((str(reason),), count) for reason, count in counts.finished.items()],
    )
    page.counters(
        *shared.ADMISSION_REJECTIONS,
        ("reason",),
        [((reason,), count) for reason, count in counts.rejections.items()],
    )
    page.counter(
        "inflight_requests_cancelled",
        "Requests aborted before completion: client disconnect, timeout, end of drain, or engine process lost.",
        counts.cancelled,
    )
    page.counter(
        "inflight_engine_restarts",
        "Restarts of the engine process after it exited or hung.",
        counts.engine_restarts,
    )
    page.counter(
        "inflight_requests_resubmitted",
        "Resubmissions of requests to a new engine process.",
        counts.resubmitted,
    )


def _histograms(page: Families, counts: Counts) -> None:
    for name, documentation, histogram in (
        ("vllm:time_to_first_token_seconds", "Time from arrival to the first token.", counts.time_to_first_token),
        ("vllm:inter_token_latency_seconds", "Time between two tokens of a request.", counts.inter_token_latency),
        (
            "vllm:request_time_per_output_token_seconds",
            "Mean time per output token of a finished request, excluding the first token.",
            counts.time_per_output_token,
        ),
        ("vllm:e2e_request_latency_seconds", "Time from arrival to the last token.", counts.end_to_end),
        ("vllm:request_queue_time_seconds", "Time from arrival to a slot.", counts.queue_time),
        (
            "vllm:request_prefill_time_seconds",
            "Time from the first slot to the first token, of a finished request.",
            counts.prefill_time,
        ),
        (
            "vllm:request_decode_time_seconds",
            "Time from the first token to the last one, of a finished request.",
            counts.decode_time,
        ),
        (
            "vllm:request_inference_time_seconds",
            "Time from the first slot to the last token, of a finished request.",
            counts.inference_time,
        ),
        ("vllm:request_prompt_tokens", "Prompt tokens of a finished request.", counts.prompt_length),
        ("vllm:request_generation_tokens", "Generated tokens of a finished request.", counts.generation_length),
        ("vllm:request_params_max_tokens", "Limit of the output of a finished request.", counts.max_tokens),
        ("vllm:request_params_n", "Answers that a call asks for to each prompt.", counts.num_samples),
        ("vllm:iteration_tokens_total", "Tokens computed in a step.", counts.step_tokens),
        ("inflight_step_duration_seconds", "Duration of a step, including scheduling.", counts.step_duration),
        ("inflight_schedule_duration_seconds", "Time of a step in the scheduler.", counts.schedule_duration),
    ):
        page.histogram(name, documentation, histogram)


def _limits(page: Families, load: Load, revision: int) -> None:
    if load.limits is None or load.ready is None:
        return
    limits, capacity, stats = load.limits, load.ready.capacity, load.stats
    page.gauge(*shared.MAX_NUM_SEQS, limits.max_num_seqs)
    page.gauge(*shared.MAX_NUM_SEQS_CAPACITY, capacity.max_num_seqs)
    page.gauge(*shared.MAX_NUM_BATCHED_TOKENS, limits.max_num_batched_tokens)
    page.gauge(*shared.MAX_NUM_BATCHED_TOKENS_CAPACITY, capacity.max_num_batched_tokens)
    page.gauge(*shared.RUNTIME_CONFIG_REVISION, revision)
    empty = max(0, limits.max_num_seqs - stats.num_running)
    page.gauge(
        "inflight_slots_wasted_ratio",
        "Share of max_num_seqs without a request while requests wait, after the latest step.",
        empty / limits.max_num_seqs if stats.num_waiting else 0.0,
    )


def _demand(page: Families, demand: Demand) -> None:
    page.counter(*shared.ARRIVED_REQUESTS, demand.arrived_requests)
    page.counter(*shared.ARRIVED_PROMPT_TOKENS, demand.arrived_prompt_tokens)
    page.counter(*shared.ARRIVED_PROMPT_TOKENS_SQUARED, demand.arrived_prompt_tokens_squared)
    lengths = demand.output_lengths.estimate()
    if lengths is not None:
        page.gauge(*shared.OUTPUT_TOKENS_MEAN, lengths.mean)
        page.gauge(*shared.OUTPUT_TOKENS_SECOND_MOMENT, lengths.second_moment)


def _step_cost(page: Families, cost: StepCost | None) -> None:
    if cost is None:
        return
    page.gauges(
        *shared.STEP_COST_SECONDS,
        ("term",),
        [((term,), getattr(cost.model, field)) for term, field in TERMS.items()],
    )
    page.gauges(
        *shared.STEP_COST_CURVE_SECONDS,
        ("tokens",),
        [((f"{tokens:g}",), seconds) for tokens, seconds in cost.model.curve],
    )
    page.gauge(*shared.STEP_COST_ERROR_RATIO, cost.error)
    page.gauge(*shared.STEP_COST_STEPS, cost.steps)


def _traces(page: Families, spans: SpanCounts | None) -> None:
    if spans is None:
        return
    page.counter("inflight_trace_spans_exported", "Spans that the trace collector accepted.", spans.exported)
    page.counters(
        "inflight_trace_spans_dropped",
        "Dropped spans, by reason: the export queue was full, or the export failed.",
        ("reason",),
        [(("queue_full",), spans.queue_full), (("export_failed",), spans.refused)],
    )


def _peers(page: Families, reads: PeerReads, load: Load) -> None:
    page.counter("inflight_peer_sent_bytes", "Bytes of weights that peers read from this engine.", reads.sent_bytes)
    page.counter(
        "inflight_peer_refused_reads",
        "Reads of peers that were refused: too many at once, or steps above the TPOT target.",
        reads.refused,
    )
    if load.ready is None or load.ready.weights is None:
        return
    weights = load.ready.weights
    page.counters(
        "inflight_weights_read_bytes",
        "Bytes of weights that the engine process read from peers and from the source, which were not in the model "
        "cache.",
        ("from",),
        [(("peers",), weights.peer_bytes), (("source",), weights.source_bytes)],
    )
    page.counter("inflight_peer_failures", "Peers that failed while weights were read.", weights.peer_failures)


def _step_parts(page: Families, parts: StepParts) -> None:
    page.counters(
        "inflight_step_work",
        "Work of steps, by term of the step cost; term=step counts the steps.",
        ("term",),
        [((term,), amount) for term, amount in parts.work.items()],
    )
    page.counters(
        "inflight_step_predicted_seconds",
        "Predicted seconds of steps by the step cost in force, by term; term=curve is its nonlinear part.",
        ("term",),
        [((term,), seconds) for term, seconds in parts.predicted_s.items()],
    )


def _classes(page: Families, counts: Iterable[ClassCounts], waiting: Mapping[str, int]) -> None:
    named = [(each, (each.service_class.name,)) for each in counts]
    labels = ("class",)
    page.gauges(
        "inflight_class_requests_waiting",
        "Requests of the class waiting for their first slot.",
        labels,
        [(name, waiting[each.service_class.name]) for each, name in named],
    )
    page.counters(
        "inflight_class_requests_finished",
        "Finished requests of the class, excluding aborted requests.",
        labels,
        [(name, each.finished) for each, name in named],
    )
    page.counters(
        "inflight_class_ttft_met",
        "Finished requests of the class whose time to first token was within the target of the class.",
        labels,
        [(name, each.ttft_met) for each, name in named if each.service_class.ttft_target is not None],
    )
    page.counters(
        "inflight_class_tpot_met",
        "Finished requests of the class, of at least two tokens, whose time per output token was within the target.",
        labels,
        [(name, each.tpot_met) for each, name in named if each.service_class.tpot_target is not None],
    )

"""One engine's /metrics text as a value. Names are vLLM's, with `inflight_*` where vLLM has none.

vLLM itself is read as well: what only our engine tells is None there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from inflight_operator.observe.histogram import Histogram

_GAUGES_SUMMED = ("vllm:num_requests_running", "vllm:num_requests_waiting", "inflight_waiting_prompt_tokens")
_GAUGES_MAX = (
    "vllm:kv_cache_usage_perc",
    "inflight_max_num_seqs",
    "inflight_max_num_seqs_capacity",
    "inflight_max_num_batched_tokens",
    "inflight_max_num_batched_tokens_capacity",
    "inflight_runtime_config_revision",
)
_COUNTERS = ("vllm:num_preemptions_total", "vllm:generation_tokens_total")
_HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:iteration_tokens_total",
)
_WANTED = (*_GAUGES_SUMMED, *_GAUGES_MAX, *_COUNTERS, *_HISTOGRAMS)


class MetricsError(ValueError):
    """The text is not an engine's metrics; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one scrape of one engine showed. Counters and histograms count from the start of the engine process.

    Attributes:
        time: seconds on the steady clock of the scraper.
        running, waiting: requests with a slot, requests in the queue.
        kv_usage: share of KV blocks in use, 0 to 1.
        preemptions, generation_tokens: counters.
        ttft: time to first token, seconds.
        tpot: time per output token of finished requests, seconds.
        itl: inter-token latency, seconds.
        step_tokens: tokens computed in one iteration.
        waiting_prompt_tokens: prompt tokens not computed yet.
        max_num_seqs, max_num_batched_tokens: limits in force.
        max_num_seqs_capacity, max_num_batched_tokens_capacity: what the engine was started with.
        revision: of the limits in force.
    """

    time: float
    running: int
    waiting: int
    kv_usage: float
    preemptions: float
    generation_tokens: float
    ttft: Histogram
    tpot: Histogram
    itl: Histogram
    step_tokens: Histogram
    waiting_prompt_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs_capacity: int | None = None
    max_num_batched_tokens_capacity: int | None = None
    revision: int | None = None


def parse_metrics(text: str, time: float) -> Sample:
    """The sample in Prometheus text format `text`, taken at `time`.

    Values of several label sets (engines of one vLLM server) are summed; utilizations and limits take the largest.
    What is not a finite number counts as not told.

    Raises:
        MetricsError: the text cannot be parsed, or `vllm:num_requests_running` is not in it.
    """
    # Most lines of an engine's page are not looked at; parsing only those that are keeps 5,000 pods on one core.
    wanted = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_WANTED))
    values: dict[str, list[float]] = defaultdict(list)
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    try:
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                if not math.isfinite(sample.value):
                    continue
                if "le" in sample.labels:
                    buckets[sample.name.removesuffix("_bucket")][float(sample.labels["le"])] += sample.value
                else:
                    values[sample.name].append(sample.value)
    except ValueError as error:
        raise MetricsError(f"not Prometheus text: {error}") from error
    if not values["vllm:num_requests_running"]:
        raise MetricsError("vllm:num_requests_running is missing: this is not an engine's metrics page")

    def most(name: str) -> int | None:
        return int(max(values[name])) if values[name] else None

    def histogram(name: str) -> Histogram:
        found = sorted(buckets[name].items())
        return Histogram(tuple(b for b, _ in found), tuple(c for _, c in found), sum(values[f"{name}_sum"]))

    tokens_waiting = values["inflight_waiting_prompt_tokens"]
    return Sample(
        time=time,
        running=int(sum(values["vllm:num_requests_running"])),
        waiting=int(sum(values["vllm:num_requests_waiting"])),
        kv_usage=max(values["vllm:kv_cache_usage_perc"], default=0.0),
        preemptions=sum(values["vllm:num_preemptions_total"]),
        generation_tokens=sum(values["vllm:generation_tokens_total"]),
        ttft=histogram("vllm:time_to_first_token_seconds"),
        tpot=histogram("vllm:request_time_per_output_token_seconds"),
        itl=histogram("vllm:inter_token_latency_seconds"),
        step_tokens=histogram("vllm:iteration_tokens_total"),
        waiting_prompt_tokens=int(sum(tokens_waiting)) if tokens_waiting else None,
        max_num_seqs=most("inflight_max_num_seqs"),
        max_num_batched_tokens=most("inflight_max_num_batched_tokens"),
        max_num_seqs_capacity=most("inflight_max_num_seqs_capacity"),
        max_num_batched_tokens_capacity=most("inflight_max_num_batched_tokens_capacity"),
        revision=most("inflight_runtime_config_revision"),
    )

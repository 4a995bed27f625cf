"""An engine's /metrics page as a value. A measurement is one field: its annotation has the names and the reading
function.

vLLM's own pages lack `limits`, `capacity`, `revision`, `waiting_prompt_tokens`, `cost` and arrivals.

A page comes from a pod that runs a tenant's model and is not trusted: an impossible number makes the page an error
(counters, gauges, buckets) or the field unknown (limits, capacity, revision, cost model, means of outputs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, get_origin, get_type_hints

from inflight_base.page import reader
from inflight_base.page.histogram import Histogram
from inflight_base.page.reader import Page, PageError, PageReader
from inflight_cost.model import CostModel
from inflight_settings.limits import HIGHEST_LIMITS, Limits

_CAPACITY = ("inflight_max_num_seqs_capacity", "inflight_max_num_batched_tokens_capacity")
_FULL = ("queue_full", "class_queue_full", "queue_tokens", "shed")
"""Reasons of requests rejected for lack of capacity; others would be rejected by an idle engine as well, or are retried
at another pod."""

_ROUNDING = 1e-6
"""Tolerance by which a share of KV blocks may be above 1."""


def _count_or_none(page: Page, name: str) -> int | None:
    return int(page.total(name)) if page.values[name] else None


def _share(page: Page, name: str) -> float | None:
    share = page.largest(name)
    if share is None:
        return None
    if share > 1 + _ROUNDING:
        raise PageError(f"{name} is {share:g}; a share is at most 1")
    return min(1.0, share)


def _limits(page: Page, seqs: str, tokens: str) -> Limits | None:
    max_num_seqs, max_num_batched_tokens = page.whole(seqs), page.whole(tokens)
    if not max_num_seqs or not max_num_batched_tokens:
        return None
    return _shared_limits(max_num_seqs, max_num_batched_tokens)


@lru_cache(maxsize=1024)
def _shared_limits(max_num_seqs: int, max_num_batched_tokens: int) -> Limits | None:
    """Returns the limits, the same object for all engines; None if they are out of range."""
    limits = Limits(max_num_seqs, max_num_batched_tokens)
    return limits if limits.at_most(HIGHEST_LIMITS) == limits else None


def _refused(page: Page, name: str) -> float:
    return sum(count for reason, count in page.keyed[name] if reason in _FULL)


def _weights(place: str) -> Callable[[Page, str], float]:
    return lambda page, name: sum(count for key, count in page.keyed[name] if key == place)


def _kv_tokens(page: Page, name: str, _: str) -> int | None:
    return page.whole(name) or page.kv_cache_tokens() or None


_EMPTY = Histogram()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters and histograms: in a sample since the start of the engine process, in a `PodSpan` their growth.

    Attributes:
        preemptions, generation_tokens: counters.
        prompt_tokens: counter of prompt tokens, computed or found in the prefix cache.
        arrived, arrived_tokens, arrived_squares: counters of accepted requests, of their prompt tokens, and of the
            squares of their lengths; 0 if not reported.
        prefix_queries, prefix_hits: counters of prompt tokens looked up in the prefix cache, and found there.
        ttft: time to first token, seconds.
        tpot: time per output token of finished requests, seconds.
        itl: inter-token latency, seconds.
        step_tokens: tokens computed in one iteration.
    """

    preemptions: Annotated[float, Page.total, reader.PREEMPTIONS] = 0.0
    generation_tokens: Annotated[float, Page.total, reader.GENERATION_TOKENS] = 0.0
    prompt_tokens: Annotated[float, Page.total, "vllm:prompt_tokens_total"] = 0.0
    arrived: Annotated[float, Page.total, "inflight_arrived_requests_total"] = 0.0
    arrived_tokens: Annotated[float, Page.total, "inflight_arrived_prompt_tokens_total"] = 0.0
    arrived_squares: Annotated[float, Page.total, reader.ARRIVED_SQUARES] = 0.0
    prefix_queries: Annotated[float, Page.total, "vllm:prefix_cache_queries_total"] = 0.0
    prefix_hits: Annotated[float, Page.total, "vllm:prefix_cache_hits_total"] = 0.0
    ttft: Annotated[Histogram, Page.histogram, reader.TTFT] = _EMPTY
    tpot: Annotated[Histogram, Page.histogram, reader.TPOT] = _EMPTY
    itl: Annotated[Histogram, Page.histogram, "vllm:inter_token_latency_seconds"] = _EMPTY
    step_tokens: Annotated[Histogram, Page.histogram, "vllm:iteration_tokens_total"] = _EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Counters):
    """The result of one scrape of one engine.

    Attributes:
        time: when the scrape began, in seconds on the steady clock: what it says is no older.
        running, waiting: requests with a slot, requests in the queue.
        kv_usage: share of KV blocks in use, 0 to 1; None if not reported.
        waiting_prompt_tokens: prompt tokens not computed yet.
        limits: limits in force.
        capacity: largest limits that the engine accepts, set at its start.
        revision: revision of the limits in force.
        refused: counter of requests rejected for lack of capacity.
        output_mean, output_square: mean output tokens of a request, and mean of their squares, including running
            requests.
        kv_tokens: tokens that the KV cache holds.
        cost: cost model of a step, as fitted by the engine.
        cost_error: median relative error of `cost`.
        cost_steps: steps that `cost` was fitted to.
        weights_seconds: seconds that the engine took to read the model at its start.
        asleep: engines that have given back the memory of their KV cache, until their next request.
        loading_read_bytes, loading_total_bytes: bytes of the model that a loading engine has read, and all of them.
        loading_seconds: seconds since it began to read them.
        peer_weights, source_weights: bytes of weights that it read from other engines, and from the source, where it
            asks others. peer_failures: how often another one did not answer as it should.
        digest: version of the engine's model; empty if not reported.
        cache_problem: why the weights were read from their source although there is a model cache; empty if they were
            not.
        plugin_problem: why the plugin does not change the vLLM server that it runs in; empty if it does.
    """

    time: float
    running: Annotated[int, Page.count, reader.RUNNING] = 0
    waiting: Annotated[int, Page.count, reader.WAITING] = 0
    kv_usage: Annotated[float | None, _share, reader.KV_USAGE] = None
    waiting_prompt_tokens: Annotated[int | None, _count_or_none, reader.WAITING_PROMPT_TOKENS] = None
    limits: Annotated[Limits | None, _limits, reader.MAX_NUM_SEQS, reader.MAX_NUM_BATCHED_TOKENS] = None
    capacity: Annotated[Limits | None, _limits, *_CAPACITY] = None
    revision: Annotated[int | None, Page.whole, "inflight_runtime_config_revision"] = None
    refused: Annotated[float, _refused, reader.REJECTIONS] = 0.0
    output_mean: Annotated[float | None, Page.positive, "inflight_output_tokens_mean"] = None
    output_square: Annotated[float | None, Page.positive, "inflight_output_tokens_second_moment"] = None
    kv_tokens: Annotated[int | None, _kv_tokens, reader.KV_CACHE_TOKENS, reader.CACHE_CONFIG] = None
    cost: Annotated[CostModel | None, Page.cost, reader.STEP_COST, reader.STEP_COST_CURVE] = None
    cost_error: Annotated[float | None, Page.largest, "inflight_step_cost_error_ratio"] = None
    cost_steps: Annotated[float, Page.total, "inflight_step_cost_steps"] = 0.0
    weights_seconds: Annotated[float | None, Page.positive, reader.WEIGHTS_SECONDS] = None
    asleep: Annotated[int, Page.count, reader.ASLEEP] = 0
    loading_read_bytes: Annotated[float | None, Page.largest, "inflight_loading_read_bytes"] = None
    loading_total_bytes: Annotated[float | None, Page.positive, "inflight_loading_total_bytes"] = None
    peer_weights: Annotated[float, _weights("peers"), reader.WEIGHTS_READ] = 0.0
    source_weights: Annotated[float, _weights("source"), reader.WEIGHTS_READ] = 0.0
    peer_failures: Annotated[float, Page.total, "inflight_peer_failures_total"] = 0.0
    loading_seconds: Annotated[float | None, Page.positive, "inflight_loading_seconds"] = None

    plugin_problem: str = ""
    digest: str = ""
    cache_problem: str = ""

    @property
    def max_num_seqs(self) -> int | None:
        """The slot limit in force."""
        return None if self.limits is None else self.limits.max_num_seqs

    @property
    def request_tokens(self) -> float | None:
        """Tokens that its requests hold in the KV cache or still have to compute."""
        if self.kv_usage is None or self.kv_tokens is None or self.waiting_prompt_tokens is None:
            return None
        return self.kv_usage * self.kv_tokens + self.waiting_prompt_tokens

    @property
    def warmth(self) -> float:
        """Share of prompt tokens that were found in the prefix cache; 0 if not reported."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0


def mean_kv_usage(samples: Iterable[Sample]) -> float | None:
    """Returns the mean share of KV blocks in use, 0 to 1, over the samples that report it; None if none does."""
    reported = [sample.kv_usage for sample in samples if sample.kv_usage is not None]
    return sum(reported) / len(reported) if reported else None


_READINGS = [
    (field, annotation.__metadata__[0], annotation.__metadata__[1:])
    for field, annotation in get_type_hints(Sample, include_extras=True).items()
    if get_origin(annotation) is Annotated
]
"""Fields, the function that reads each of a page, and the names of its samples."""

PLUGIN_INFO = "inflight_plugin_info"
"""Metric whose labels say whether the plugin knows the vLLM server that it runs in."""

MODEL_INFO = "inflight_model_info"
"""Metric whose label is the version of the model."""

CACHE_INFO = "inflight_model_cache_info"
"""Metric whose label says why the model cache was not used."""

READER = PageReader(
    [
        PLUGIN_INFO,
        MODEL_INFO,
        CACHE_INFO,
        *(name for _, how, names in _READINGS if how is not Page.histogram for name in names),
    ],
    [name for _, how, names in _READINGS if how is Page.histogram for name in names],
)


_PLUGIN = re.compile(
    rf'^{PLUGIN_INFO}\{{[^\n]{{0,400}}?\breason="((?:[^"\n\\]|\\.){{0,300}})"[^\n]{{0,400}}', re.MULTILINE
)


_DIGEST = re.compile(rf'^{MODEL_INFO}\{{[^\n]{{0,400}}?\bdigest="([a-z0-9]{{1,16}}:[0-9a-f]{{1,64}})"', re.MULTILINE)


_CACHE = re.compile(rf'^{CACHE_INFO}\{{[^\n]{{0,400}}?\breason="((?:[^"\n\\]|\\.){{0,300}})"', re.MULTILINE)


def parse_metrics(text: str, time: float) -> Sample:
    """Returns the sample in Prometheus text format `text`, taken at `time`.

    Values of several label sets (engines of one vLLM server) are summed; utilizations and limits take the largest.
    A gauge or counter that is not a finite number counts as missing, a histogram with such a bucket or sum as empty.
    Impossible values of limits, capacity, revision, cost model, output lengths and size of the KV cache count as
    missing.

    Raises:
        PageError: `PageReader.read` raises it; a histogram is impossible (`Page.histogram`); a utilization is above 1.
    """
    page = READER.read(text)
    values = {field: how(page, *names) for field, how, names in _READINGS}
    with_plugin = page.values[PLUGIN_INFO] or PLUGIN_INFO in page.unknown
    model = _DIGEST.search(text) if page.values[MODEL_INFO] else None
    cache = _CACHE.search(text) if page.values[CACHE_INFO] else None
    return Sample(
        time=time,
        plugin_problem=_plugin_problem(text) if with_plugin else "",
        digest="" if model is None else model[1],
        cache_problem="" if cache is None else _label(cache[1]),
        **values,
    )


def read_page(page: bytes, time: float) -> Sample:
    """Returns `parse_metrics` of a page in UTF-8."""
    return parse_metrics(page.decode(), time)


def _plugin_problem(text: str) -> str:
    found = _PLUGIN.search(text)
    return _label(found[1]) if found is not None and 'state="active"' not in found[0] else ""


def _label(written: str) -> str:
    return written.replace('\\"', '"')

"""One engine's /metrics page as a value. Names are vLLM's, with `inflight_*` where vLLM has none.

vLLM's own pages are supported as well; they lack `limits`, `capacity`, `revision`, `waiting_prompt_tokens`, `cost` and
arrivals.

A page comes from a pod that runs a tenant's model and is not trusted: the parser looks at the few lines
it needs in one linear pass, the size of what it returns is bounded, and an impossible number makes the page an error
(counters, gauges, buckets) or the field unknown (limits, capacity, revision, cost model, means of outputs).

Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from operator import le, lt

from inflight_base.page.histogram import Histogram
from inflight_cost.model import CostModel
from inflight_operator.limits import Limits

_GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "inflight_waiting_prompt_tokens",
    "inflight_max_num_seqs",
    "inflight_max_num_seqs_capacity",
    "inflight_max_num_batched_tokens",
    "inflight_max_num_batched_tokens_capacity",
    "inflight_runtime_config_revision",
    "inflight_kv_cache_tokens",
    "inflight_output_tokens_mean",
    "inflight_output_tokens_second_moment",
    "inflight_step_cost_error_ratio",
    "inflight_step_cost_steps",
)
_SQUARES = "inflight_arrived_prompt_tokens_squared_total"
_COUNTERS = (
    "vllm:num_preemptions_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "inflight_arrived_requests_total",
    "inflight_arrived_prompt_tokens_total",
    _SQUARES,
)
_REJECTIONS = "inflight_admission_rejections_total"
_FULL = ("queue_full", "class_queue_full", "queue_tokens", "shed")
"""Labels of requests rejected for lack of capacity; others would be rejected by an idle engine as well, or are retried
at another pod."""
_COUNTED = frozenset((*_COUNTERS, _REJECTIONS))
_COST_TERMS = "inflight_step_cost_seconds"
_COST_CURVE = "inflight_step_cost_curve_seconds"
_CACHE_CONFIG = "vllm:cache_config_info"
"""Of vLLM alone: its labels tell how large the KV cache is."""
_HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:iteration_tokens_total",
)
WANTED = (
    *_GAUGES,
    *_COUNTERS,
    _REJECTIONS,
    _COST_TERMS,
    _COST_CURVE,
    _CACHE_CONFIG,
    *(f"{name}{suffix}" for name in _HISTOGRAMS for suffix in ("_bucket", "_sum")),
)
"""Names of all samples that `parse_metrics` reads, as `?name[]=` of prometheus_client takes them."""

MAX_LINES = 20_000
"""Most lines of a page. A whole page of vLLM has about 1,000 for each of its engines."""

MAX_BUCKETS = 64
"""Most buckets of one histogram; engines have about 20."""

MAX_NUMBER = 2.0**53
"""Largest counter, gauge or revision: above it doubles skip integers."""

MAX_SQUARES = 2.0**80
"""Largest sum of squared prompt lengths: it is used for its mean alone, which needs no exact integer."""

MAX_CURVE = 32
"""Most points of the curve in a cost model."""

MAX_STEP_SECONDS = 3600.0
"""Largest accepted coefficient of a cost model: slower engines cannot serve requests."""

MAX_LIMITS = Limits(65_536, 1_048_576)
"""Largest limits and capacities, those of the InferenceService's schema."""

_ROUNDING = 1e-6
"""A share of KV blocks may be above 1 by this much."""

_BUCKETS = frozenset(f"{name}_bucket" for name in _HISTOGRAMS)
_UNTOLD = frozenset(name for name in _GAUGES if name.startswith("inflight_")) - {"inflight_waiting_prompt_tokens"}
"""Gauges that a number which no engine can have makes unknown, and not an error."""

_TERMS = {
    "step": "base_s",
    "decode_sequence": "decode_seq_s",
    "prefill_token": "prefill_token_s",
    "decode_kv_token": "decode_kv_token_s",
    "prefill_context_token": "prefill_context_token_s",
    "copied_token": "copied_token_s",
}
"""Field of `CostModel` by label. Engines without copies do not report the last."""

_NEEDED_TERMS = _TERMS.keys() - {"copied_token"}


class MetricsError(ValueError):
    """The text is not an engine's metrics; the message says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one scrape of one engine. Counters and histograms count from the start of the engine process.

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
        limits: in force.
        capacity: largest limits that the engine accepts, set at its start.
        revision: of the limits in force.
        prompt_tokens: counter of prompt tokens, computed or found in the prefix cache.
        arrived, arrived_tokens, arrived_squares: counters of accepted requests, of their prompt tokens, and of the
            squares of their lengths; 0 if not reported.
        refused: counter of requests rejected for lack of capacity.
        prefix_queries, prefix_hits: counters of prompt tokens looked up in the prefix cache, and found there.
        output_mean, output_square: mean output tokens of a request, and mean of their squares, including running
            requests.
        kv_tokens: that the KV cache holds.
        cost: cost model of a step, as fitted by the engine.
        cost_error: median relative error of `cost`.
        cost_steps: steps that `cost` was fitted to.
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
    limits: Limits | None = None
    capacity: Limits | None = None
    revision: int | None = None
    prompt_tokens: float = 0.0
    arrived: float = 0.0
    arrived_tokens: float = 0.0
    arrived_squares: float = 0.0
    refused: float = 0.0
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    output_mean: float | None = None
    output_square: float | None = None
    kv_tokens: int | None = None
    cost: CostModel | None = None
    cost_error: float | None = None
    cost_steps: float = 0.0


def _one_of(prefix: str) -> str:
    """`prefix` and the rest of any wanted name. The branches begin with different letters, so few are tried."""
    return prefix + "(?:" + "|".join(name.removeprefix(prefix) for name in WANTED if name.startswith(prefix)) + ")"


_QUOTED = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
_EDGE = r'[ \t]*+le[ \t]*+=[ \t]*+"([!#-\[\]^`-~]*+)"'
_KEY = r'[ \t]*+(?:term|tokens|reason)[ \t]*+=[ \t]*+"([!#-\[\]^`-~_]*+)"'
_LABEL = rf"[ \t]*+[a-zA-Z_]\w*+[ \t]*+=[ \t]*+{_QUOTED}"
_LINE = re.compile(
    # `re` finds the line feed with memchr, and all repetitions are possessive: no backtracking, so the time is linear
    # in the text for any input.
    rf"\n[ \t]*+({_one_of('vllm:')}|{_one_of('inflight_')})(?![\w:])[ \t]*+"
    rf"(?:\{{(?:(?:{_EDGE}|{_KEY}|{_LABEL})[ \t]*+,?+)*+[ \t]*+\}})?+"
    r"[ \t]*+([!-^`-~]*+)([^\n]*+)",
    re.ASCII,
)
"""A line of a wanted sample: name, `le`, what tells its series apart, value, and what follows the value. A line that is
not well formed matches too; its value is then no number, or something follows it that is no time stamp."""

_CACHE_CONFIG_LINE = re.compile(rf"^{_CACHE_CONFIG}\{{([^\n]*+)", re.MULTILINE)
_BLOCK_SIZE = re.compile(r'(?:^|,)block_size="([0-9]{1,7})"')
_NUM_BLOCKS = re.compile(r'(?:^|,)num_gpu_blocks="([0-9]{1,9})"')
_AFTER_VALUE = re.compile(r"(?:[ \t]+[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)?(?:[ \t]+#[^\n]*)?[ \t\r]*", re.ASCII)
"""A time stamp and an exemplar, both optional and both ignored."""


def parse_metrics(text: str, time: float) -> Sample:
    """The sample in Prometheus text format `text`, taken at `time`.

    Values of several label sets (engines of one vLLM server) are summed; utilizations and limits take the largest.
    A gauge or counter that is not a finite number counts as missing, a histogram with such a bucket or sum as empty.
    Counters count whole requests and tokens; a fraction is left out, so that no mean is of less than one.
    Impossible values of limits, capacity, revision (see `MAX_LIMITS`, `MAX_NUMBER`), cost model, output lengths and
    size of the KV cache count as missing.

    Raises:
        MetricsError: a relevant line cannot be parsed; `vllm:num_requests_running` is missing; another number is
            negative or above `MAX_NUMBER`, or a utilization above 1; a histogram has falling counts, no bucket for
            infinity, or more buckets than `MAX_BUCKETS`; the page has more than `MAX_LINES` lines.
    """
    if text.count("\n") > MAX_LINES:
        raise MetricsError(f"more than {MAX_LINES} lines")
    values: dict[str, list[float]] = defaultdict(list)
    buckets: dict[str, dict[float, float]] = defaultdict(dict)
    keyed: dict[str, dict[str, float]] = {_COST_TERMS: {}, _COST_CURVE: {}}
    unknown: set[str] = set()
    for name, edge, key, number, rest in _LINE.findall(f"\n{text}"):
        try:
            value = float(number)
            bound = float(edge) if name in _BUCKETS else 0.0
        except ValueError as error:
            raise MetricsError(f"not Prometheus text: {name} is {number[:40]!r} in bucket {edge[:40]!r}") from error
        if rest and not _AFTER_VALUE.fullmatch(rest):
            raise MetricsError(f"not Prometheus text: {name} is followed by {rest.strip()[:40]!r}")
        if name in keyed:
            if 0 <= value <= MAX_STEP_SECONDS:
                keyed[name][key] = max(value, keyed[name].get(key, 0.0))
            else:
                unknown.add(name)
        elif not 0 <= value <= (MAX_NUMBER if name != _SQUARES else MAX_SQUARES):
            if math.isfinite(value) and name not in _UNTOLD:
                raise MetricsError(f"{name} is {value:g}, which no engine counts to")
            unknown.add(name)
        elif name in _BUCKETS:
            of_name = buckets[name]
            of_name[bound] = of_name.get(bound, 0.0) + value
        elif name != _REJECTIONS or key in _FULL:
            values[name].append(value // 1 if name in _COUNTED else value)
    if not values["vllm:num_requests_running"]:
        raise MetricsError("vllm:num_requests_running is missing: this is not an engine's metrics page")
    kv_usage = max(values["vllm:kv_cache_usage_perc"], default=0.0)
    if kv_usage > 1 + _ROUNDING:
        raise MetricsError(f"vllm:kv_cache_usage_perc is {kv_usage:g}; a share is at most 1")

    def histogram(name: str) -> Histogram:
        if f"{name}_bucket" in unknown or f"{name}_sum" in unknown:
            return Histogram()
        return _histogram(name, buckets[f"{name}_bucket"], sum(values[f"{name}_sum"]))

    prompt_tokens = values["inflight_waiting_prompt_tokens"]
    return Sample(
        time=time,
        running=int(sum(values["vllm:num_requests_running"])),
        waiting=int(sum(values["vllm:num_requests_waiting"])),
        kv_usage=min(1.0, kv_usage),
        preemptions=sum(values["vllm:num_preemptions_total"]),
        generation_tokens=sum(values["vllm:generation_tokens_total"]),
        ttft=histogram("vllm:time_to_first_token_seconds"),
        tpot=histogram("vllm:request_time_per_output_token_seconds"),
        itl=histogram("vllm:inter_token_latency_seconds"),
        step_tokens=histogram("vllm:iteration_tokens_total"),
        waiting_prompt_tokens=int(sum(prompt_tokens)) if prompt_tokens else None,
        limits=_limits(values["inflight_max_num_seqs"], values["inflight_max_num_batched_tokens"]),
        capacity=_limits(values["inflight_max_num_seqs_capacity"], values["inflight_max_num_batched_tokens_capacity"]),
        revision=_whole(values["inflight_runtime_config_revision"]),
        prompt_tokens=sum(values["vllm:prompt_tokens_total"]),
        arrived=sum(values["inflight_arrived_requests_total"]),
        arrived_tokens=sum(values["inflight_arrived_prompt_tokens_total"]),
        arrived_squares=sum(values[_SQUARES]),
        refused=sum(values[_REJECTIONS]),
        prefix_queries=sum(values["vllm:prefix_cache_queries_total"]),
        prefix_hits=sum(values["vllm:prefix_cache_hits_total"]),
        output_mean=_positive(values["inflight_output_tokens_mean"]),
        output_square=_positive(values["inflight_output_tokens_second_moment"]),
        kv_tokens=_whole(values["inflight_kv_cache_tokens"]) or _vllm_kv_tokens(text),
        cost=None if unknown & keyed.keys() else _cost(keyed[_COST_TERMS], keyed[_COST_CURVE]),
        cost_error=max(values["inflight_step_cost_error_ratio"], default=None),
        cost_steps=sum(values["inflight_step_cost_steps"]),
    )


def _positive(values: list[float]) -> float | None:
    """The largest value; None without one above 0."""
    return max(values, default=0.0) or None


def _cost(terms: dict[str, float], curve: dict[str, float]) -> CostModel | None:
    """The cost model of these coefficients; None if one is missing, or the curve is invalid."""
    if len(curve) > MAX_CURVE or not terms.keys() >= _NEEDED_TERMS:
        return None
    try:
        points = tuple(sorted((float(tokens), seconds) for tokens, seconds in curve.items()))
    except ValueError:
        return None
    tokens = [0.0, *(tokens for tokens, _ in points)]
    # NaN compares as false, so it is rejected here too.
    if not (all(map(lt, tokens, tokens[1:])) and tokens[-1] <= MAX_NUMBER):
        return None
    coefficients = tuple(terms.get(term, 0.0) for term in _TERMS)
    return _shared_cost(coefficients, points)


def _vllm_kv_tokens(text: str) -> int | None:
    """Blocks x block size of all engines of a vLLM server."""
    lines = _CACHE_CONFIG_LINE.findall(text) if _CACHE_CONFIG in text else []
    sizes = [(_BLOCK_SIZE.search(labels), _NUM_BLOCKS.search(labels)) for labels in lines[:MAX_CURVE]]
    tokens = sum(int(size[1]) * int(blocks[1]) for size, blocks in sizes if size is not None and blocks is not None)
    return tokens or None


def _whole(values: list[float]) -> int | None:
    """The largest value; None without any, or when it is not a whole number."""
    largest = max(values, default=0.5)
    return int(largest) if largest.is_integer() else None


def _limits(seqs: list[float], tokens: list[float]) -> Limits | None:
    max_num_seqs, max_num_batched_tokens = _whole(seqs), _whole(tokens)
    if not max_num_seqs or not max_num_batched_tokens:
        return None
    return _shared_limits(max_num_seqs, max_num_batched_tokens)


def _histogram(name: str, buckets: dict[float, float], total: float) -> Histogram:
    if not buckets:
        return Histogram()
    if len(buckets) > MAX_BUCKETS:
        raise MetricsError(f"{name} has {len(buckets)} buckets, {MAX_BUCKETS} at most are read")
    bounds = tuple(sorted(buckets))
    counts = [buckets[bound] for bound in bounds]
    # NaN compares as false with everything, so a bound that is NaN is found here too.
    if bounds[-1] != math.inf or not all(map(lt, bounds, bounds[1:])):
        raise MetricsError(f"{name} has no bucket for +Inf, or one for NaN")
    if bounds[0] < 0.0 or (len(bounds) > 1 and bounds[-2] > MAX_NUMBER):
        raise MetricsError(f"{name} has a bucket bound that no engine has")
    if not all(map(le, counts, counts[1:])):
        raise MetricsError(f"{name} has bucket counts that fall")
    return Histogram(_shared_bounds(bounds), counts, total)


@lru_cache(maxsize=1024)
def _shared_limits(max_num_seqs: int, max_num_batched_tokens: int) -> Limits | None:
    """One object for all engines with these limits; None when they are out of range."""
    limits = Limits(max_num_seqs, max_num_batched_tokens)
    return limits if limits.at_most(MAX_LIMITS) == limits else None


@lru_cache(maxsize=1024)
def _shared_cost(coefficients: tuple[float, ...], curve: tuple[tuple[float, float], ...]) -> CostModel | None:
    """One object for all samples with this cost model; None if a decode step takes no time."""
    cost = CostModel(**dict(zip(_TERMS.values(), coefficients, strict=True)), curve=curve)
    least = cost.base_s + cost.decode_seq_s + cost.decode_kv_token_s + min((one for _, one in curve), default=0.0)
    return cost if least > 0 else None


@lru_cache(maxsize=1024)
def _shared_bounds(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """One tuple for all histograms with these bounds."""
    return bounds

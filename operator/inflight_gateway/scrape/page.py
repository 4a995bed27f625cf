"""An engine's metrics page as an `EngineSample`. Names are vLLM's, with `inflight_*` where vLLM has none.

A page comes from a pod that runs a tenant's model and is not trusted: its size is bounded, and an impossible number
counts as missing. vLLM's own pages are supported too; missing fields have the defaults of `EngineSample`.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

from inflight_cost.model import CostModel
from inflight_gateway.types import EngineSample

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_CACHE_CONFIG = "vllm:cache_config_info"
_WAITING_TOKENS = "inflight_waiting_prompt_tokens"
_KV_TOKENS = "inflight_kv_cache_tokens"
_MAX_SEQS = "inflight_max_num_seqs"
_MAX_TOKENS = "inflight_max_num_batched_tokens"
_DRAINING = "inflight_draining"
_COST_TERMS = "inflight_step_cost_seconds"
_COST_CURVE = "inflight_step_cost_curve_seconds"

WANTED = (
    _RUNNING,
    _WAITING,
    _KV_USAGE,
    _CACHE_CONFIG,
    _WAITING_TOKENS,
    _KV_TOKENS,
    _MAX_SEQS,
    _MAX_TOKENS,
    _DRAINING,
    _COST_TERMS,
    _COST_CURVE,
)
"""Names of all samples that `read_page` reads, as `?name[]=` of prometheus_client takes them."""

MAX_COUNT = 2.0**40
"""Largest gauge: no engine has more tokens or requests."""

MAX_STEP_SECONDS = 3600.0
"""Largest coefficient of a cost model: slower engines cannot serve requests."""

MAX_SERIES = 64
"""Most series of one name: engines of one vLLM server, points of the cost curve."""

_TERMS = {
    "step": "base_s",
    "decode_sequence": "decode_seq_s",
    "prefill_token": "prefill_token_s",
    "decode_kv_token": "decode_kv_token_s",
    "prefill_context_token": "prefill_context_token_s",
    "copied_token": "copied_token_s",
}
"""Field of `CostModel` by label. Engines without copies omit the last."""

_NEEDED_TERMS = _TERMS.keys() - {"copied_token"}

_LINE = re.compile(
    # The engine's lines begin at the line feed, which `re` finds with memchr. Repetitions are possessive: the time is
    # linear in the text. Labels in quotes may hold anything, a brace included.
    rb"\n("
    + b"|".join(re.escape(name.encode()) for name in WANTED)
    + rb")(?:\{((?:[^\"\n}]|\"(?:[^\"\\\n]|\\.)*+\")*+)\})?+"
    rb"[ \t]++([^ \t\r\n]++)"
)
_LABEL = re.compile(rb'(?:^|,)\s*+(term|tokens|block_size|num_gpu_blocks)="([!#-\[\]^-~]{1,40})"')

Series = list[tuple[bytes, float | None]]
"""Labels and value of each line of one name; None: no number that an engine can have."""


class PageError(ValueError):
    """The response is no engine's metrics page; the message says why."""


def read_page(page: bytes, at: float) -> EngineSample:
    """The sample on a page. `at`: when its scrape began.

    Values of several series of one name (engines of one vLLM server) are summed; shares and limits take the largest.

    Raises:
        PageError: `vllm:num_requests_running` is missing.
    """
    found: dict[bytes, Series] = {}
    for name, labels, number in _LINE.findall(b"\n" + page):
        series = found.setdefault(name, [])
        if len(series) < MAX_SERIES:
            series.append((labels, _number(number)))
    if _RUNNING.encode() not in found:
        raise PageError(f"{_RUNNING} is missing: this is not an engine's metrics page")

    def total(name: str) -> int:
        return int(min(sum(value or 0.0 for _, value in found.get(name.encode(), ())), MAX_COUNT))

    def most(name: str) -> float:
        return max((value or 0.0 for _, value in found.get(name.encode(), ())), default=0.0)

    block_size, config_tokens = _cache_config(found.get(_CACHE_CONFIG.encode(), []))
    defaults = EngineSample(at)
    return EngineSample(
        at=at,
        running=total(_RUNNING),
        waiting=total(_WAITING),
        waiting_prompt_tokens=total(_WAITING_TOKENS),
        kv_utilization=min(1.0, most(_KV_USAGE)),
        kv_cache_tokens=int(most(_KV_TOKENS)) or config_tokens,
        block_size=block_size or defaults.block_size,
        max_num_seqs=int(most(_MAX_SEQS)) or defaults.max_num_seqs,
        max_num_batched_tokens=int(most(_MAX_TOKENS)) or defaults.max_num_batched_tokens,
        draining=most(_DRAINING) > 0,
        cost=_cost(found.get(_COST_TERMS.encode(), []), found.get(_COST_CURVE.encode(), [])),
    )


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= MAX_COUNT else None


def _labels(text: bytes) -> dict[bytes, bytes]:
    return dict(_LABEL.findall(text))


def _cache_config(series: Series) -> tuple[int, int]:
    """Block size, and tokens of all engines of the server; 0 if not reported."""
    sizes, tokens = [0], 0
    for text, _ in series:
        labels = _labels(text)
        size, blocks = labels.get(b"block_size", b"0"), labels.get(b"num_gpu_blocks", b"0")
        if size.isdigit() and blocks.isdigit():
            sizes.append(int(size))
            tokens += int(size) * int(blocks)
    return min(max(sizes), int(MAX_COUNT)), min(tokens, int(MAX_COUNT))


def _cost(terms: Series, curve: Series) -> CostModel | None:
    return _read_cost(tuple(terms), tuple(curve)) if terms else None


@lru_cache(maxsize=4096)
def _read_cost(
    terms: tuple[tuple[bytes, float | None], ...], curve: tuple[tuple[bytes, float | None], ...]
) -> CostModel | None:
    """The cost model of these series; None where a coefficient is missing or impossible. Engines refit it rarely, so
    most scrapes hit this cache."""
    seconds: dict[str, float] = {}
    for text, value in terms:
        if value is None or value > MAX_STEP_SECONDS:
            return None
        seconds[_labels(text).get(b"term", b"").decode()] = value
    points: list[tuple[float, float]] = []
    for text, value in curve:
        tokens = _number(_labels(text).get(b"tokens", b""))
        if not tokens or value is None or value > MAX_STEP_SECONDS:
            return None
        points.append((tokens, value))
    points.sort()
    if not seconds.keys() >= _NEEDED_TERMS or any(left == right for (left, _), (right, _) in pairwise(points)):
        return None
    cost = CostModel(**{field: seconds.get(term, 0.0) for term, field in _TERMS.items()}, curve=tuple(points))
    least = cost.base_s + cost.decode_seq_s + cost.decode_kv_token_s + min((one for _, one in points), default=0.0)
    return cost if least > 0 else None

"""An engine's metrics page as an `EngineSample`. An impossible number counts as missing, and missing fields have the
defaults of `EngineSample`: an engine whose page is odd still gets requests."""

from __future__ import annotations

from inflight_base.page import reader
from inflight_base.page.reader import PageReader
from inflight_gateway.types import EngineSample
from inflight_settings.limits import DEFAULT_LIMITS, Limits

_DRAINING = "inflight_draining"

_NAMES = (
    reader.RUNNING,
    reader.WAITING,
    reader.KV_USAGE,
    reader.CACHE_CONFIG,
    reader.WAITING_PROMPT_TOKENS,
    reader.KV_CACHE_TOKENS,
    reader.MAX_NUM_SEQS,
    reader.MAX_NUM_BATCHED_TOKENS,
    _DRAINING,
    reader.ASLEEP,
    reader.STEP_COST,
    reader.STEP_COST_CURVE,
    reader.TIER_SPEED,
)

MAX_COUNT = 2.0**40
"""Largest gauge: no engine has more tokens or requests."""

MAX_SERIES = 64
"""Most series of one name that are summed: a vLLM server has one for each of its engines."""

READER = PageReader(_NAMES, largest=MAX_COUNT, strict=False)


def read_page(body: bytes, at: float, max_num_seqs: int = DEFAULT_LIMITS.max_num_seqs) -> EngineSample:
    """Returns the sample on a page.

    Args:
        at: when its scrape began, in seconds. max_num_seqs: slots of an engine whose page lacks them.

    Values of several series of one name (engines of one vLLM server) are summed; shares and limits take the largest.

    Raises:
        PageError: `vllm:num_requests_running` is missing, or the page has too many lines.
    """
    page = READER.read(body.decode("latin-1"))  # names are ASCII; UTF-8 of a hostile page takes ten times as long

    def total(name: str) -> int:
        return int(min(sum(page.values[name][:MAX_SERIES]), MAX_COUNT))

    def most(name: str) -> float:
        return page.largest(name) or 0.0

    return EngineSample(
        at=at,
        running=total(reader.RUNNING),
        waiting=total(reader.WAITING),
        waiting_prompt_tokens=total(reader.WAITING_PROMPT_TOKENS),
        kv_utilization=min(1.0, most(reader.KV_USAGE)),
        kv_cache_tokens=int(most(reader.KV_CACHE_TOKENS)) or page.kv_cache_tokens(),
        limits=Limits(
            int(most(reader.MAX_NUM_SEQS)) or max_num_seqs,
            int(most(reader.MAX_NUM_BATCHED_TOKENS)) or DEFAULT_LIMITS.max_num_batched_tokens,
        ),
        draining=most(_DRAINING) > 0,
        asleep=most(reader.ASLEEP) > 0,
        cost=page.cost(),
        disk_slowness=page.slowness("disk"),
        peer_slowness=page.slowness("peer"),
    )

"""Load of a replica, as known to the gateway at the time of a pick."""

from __future__ import annotations

from typing import NamedTuple

from inflight_cost.model import CostModel, StepWork
from inflight_gateway.pick.growth import Growth
from inflight_gateway.types import Endpoint, EngineSample

STALE_S = 15.0
"""Age in seconds beyond which a sample is not used for the load; its sizes and cost model still hold. Of 5,000 engines
each is scraped every 10 s (`scrape.scraper`), and a lost scrape is repeated within 3 s."""

FULL_KV = 0.9
"""KV utilization above which requests that wait do so for blocks, not for their turn to be computed."""

DEFAULT_COST = CostModel(
    base_s=5.5e-3,
    decode_seq_s=15e-6,
    prefill_token_s=30e-6,
    decode_kv_token_s=0.045e-6,
    prefill_context_token_s=1.05e-9,
)
"""An 8B model on one H100-class GPU, by public arithmetic: ranks replicas until one of them has fitted its own cost.
Nothing is promised to a client by it."""


LOAD_SHARE = 0.1
"""Time of loading a token from a tier by that of computing it, where the engine has not measured it: 2.6 us of 30 for
the same model, over PCIe 5.0 at 50 GB/s."""

DISK_SLOWNESS = 10.0
"""Time of reading a token from a disk by that of loading it from host memory, where the engine has not measured it: an
NVMe disk at 5 GB/s."""

PEER_SLOWNESS = 5.0
"""The same from another engine: a network of 100 Gb/s, of which 10 GB/s are left."""


class EndpointLoad(NamedTuple):
    """An endpoint and its known load at the time of a pick.

    Attributes:
        sample: the last sample; None: never scraped.
        in_flight: unfinished choices of requests that this picker sent there.
        sent_tokens: estimated prompt tokens sent there since the scrape began, which the sample cannot include yet.
        cached_tokens: tokens of the request's prompt that the replica's prefix cache should hold.
        computed_tokens: part of the sample's waiting prompt tokens and of `sent_tokens` that the engine should have
            computed since the scrape.
        others: choices in the sample that this picker did not send there.
        growth: growth of its KV cache's use from the sample on, by the requests there; None: not known.
        answer_tokens: expected output tokens of each choice of the request.
        loaded_tokens: those of `cached_tokens` that the engine loads from a tier behind its device.
        disk_tokens: those of `loaded_tokens` that come from a disk.
        peer_tokens: those of `loaded_tokens` that come from another engine.
    """

    endpoint: Endpoint
    sample: EngineSample | None
    in_flight: int = 0
    sent_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    others: int = 0
    growth: Growth | None = None
    answer_tokens: float = 0.0
    loaded_tokens: int = 0
    disk_tokens: int = 0
    peer_tokens: int = 0


def is_fresh(load: EndpointLoad, now: float) -> bool:
    return load.sample is not None and now - load.sample.at <= STALE_S


def decode_work(sample: EngineSample, running: int) -> StepWork:
    """Returns the work of a step in which all running requests decode."""
    return StepWork(running, 0, sample.kv_utilization * sample.kv_cache_tokens, 0)


def waits_for_blocks(sample: EngineSample) -> bool:
    """Returns whether requests in the engine wait for KV blocks."""
    return sample.waiting > 0 and sample.kv_utilization >= FULL_KV


def load_seconds(cost: CostModel, load: EndpointLoad) -> float:
    """Returns the seconds that the `loaded_tokens` of a prompt take, at least one: the engine loads them, by way of its
    host memory where they come from its disk or another engine, or computes them where that takes less."""
    tokens = load.loaded_tokens
    computed_s = cost.prefill_seconds(tokens, load.cached_tokens - tokens)
    copied_s = loaded_s = copy_seconds(cost, tokens, computed_s)
    if load.disk_tokens:
        loaded_s += copied_s * disk_slowness(load.sample) * load.disk_tokens / tokens
    if load.peer_tokens:
        loaded_s += copied_s * peer_slowness(load.sample) * load.peer_tokens / tokens
    return min(loaded_s, computed_s)


def copy_seconds(cost: CostModel, tokens: int, computed_s: float) -> float:
    """Returns the seconds that copying tokens from host memory takes. Args: computed_s: that computing them takes."""
    return cost.copied_token_s * tokens if cost.copied_token_s else LOAD_SHARE * computed_s


def disk_slowness(sample: EngineSample | None) -> float:
    """Returns the time of reading a token from an engine's disk by that of copying it from host memory."""
    return (sample.disk_slowness if sample is not None else 0.0) or DISK_SLOWNESS


def peer_slowness(sample: EngineSample | None) -> float:
    """Returns the time of reading a token from another engine by that of copying it from host memory."""
    return (sample.peer_slowness if sample is not None else 0.0) or PEER_SLOWNESS


def prefill_tokens_per_second(sample: EngineSample) -> float:
    """Returns the prompt tokens a second in full steps, beside the decodes of the sample; 0 while the engine waits for
    KV blocks.

    An engine without a cost model counts as fast: if it is not, the next sample shows the excess, while an idle engine
    would go unnoticed.
    """
    if waits_for_blocks(sample):
        return 0.0
    decoding = decode_work(sample, sample.running)
    room = max(1.0, sample.limits.max_num_batched_tokens - decoding.decode_seqs)
    attended = sample.waiting_prompt_tokens / max(1, sample.waiting) / 2
    step = decoding._replace(prefill_tokens=room, prefill_context_tokens=room * attended)
    return room / (sample.cost or DEFAULT_COST).seconds(step)


def answer_tokens_per_second(sample: EngineSample) -> float:
    """Returns the output tokens a second of each running request, without prefill; the default cost is the same."""
    return 1.0 / (sample.cost or DEFAULT_COST).seconds(decode_work(sample, max(1, sample.running)))

"""CPU time of a pick: the loads of all replicas of a service for a request, and the choice among them."""

from __future__ import annotations

import random
import statistics
import time

from inflight_base.manifest.keys import ServiceKey
from inflight_cost.model import CostModel
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.pick.picker import Picker
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.types import Endpoint, EngineSample, RequestView, ServiceConfig

REPLICAS = (4, 100)
_KEY = ServiceKey("default", "bench")
_CONFIG = ServiceConfig(_KEY, "uid", "bench")
_NOW = 100.0
_ROUNDS = 25
_PICKS = 50
_PREFIXES = 40
"""Prompts that differ in their first block, of `_BLOCKS` blocks each."""
_BLOCKS = 8


def pick_microseconds() -> dict[int, float]:
    """Returns the time of a pick by the number of replicas, in microseconds: medians of the rounds."""
    return {count: _of(count) for count in REPLICAS}


def _of(count: int) -> float:
    rng = random.Random(count)
    endpoints = tuple(Endpoint(f"10.0.0.{number}:8000", f"pod-{number}") for number in range(count))
    samples = {each.address: _sample(rng) for each in endpoints}
    ledger, picker = Ledger(lambda _: endpoints, samples.get, Estimates()), Picker()
    prefixes = [tuple(rng.getrandbits(64) for _ in range(_BLOCKS)) for _ in range(_PREFIXES)]
    requests = [
        RequestView(str(number), _KEY, _NOW, prompt_tokens=64 * _BLOCKS, prefix=prefixes[number % _PREFIXES])
        for number in range(_PICKS)
    ]
    for request in requests:
        pick = picker.pick(request, _CONFIG, ledger.loads(_KEY, request, _NOW), _NOW)
        assert pick is not None
        ledger.begin(request, pick, _NOW)
    taken = []
    for _ in range(_ROUNDS):
        begin = time.thread_time()
        for request in requests:
            picker.pick(request, _CONFIG, ledger.loads(_KEY, request, _NOW), _NOW)
        taken.append((time.thread_time() - begin) / _PICKS)
    return 1e6 * statistics.median(taken)


def _sample(rng: random.Random) -> EngineSample:
    """Returns the sample of a replica with some load and room for more; each has fitted a cost model of its own."""
    waiting = rng.randrange(3)
    return EngineSample(
        at=_NOW - rng.random(),
        running=rng.randrange(60),
        waiting=waiting,
        waiting_prompt_tokens=waiting * rng.randrange(1000),
        kv_utilization=rng.random(),
        kv_cache_tokens=400_000,
        cost=CostModel(6e-3, 20e-6, 30e-6 * (1 + 0.1 * rng.random()), 0.05e-6, 1e-9),
    )

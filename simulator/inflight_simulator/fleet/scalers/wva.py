"""`wva`: the saturation analyzer V2 of llm-d's Workload Variant Autoscaler.

Source: llm-d WVA 0.9.0, 2976e4ee (2026-08-18). Loop 15 s, band 0.70 to 0.85; its number goes through an HPA with a
target of 1 and windows of 60 s up and down (README). One variant, so that costs have no effect.

The simulation has no flow control in the endpoint picker, so its queue is the fleet's `gateway_queue`, whose size in
bytes is unknown. Prompt, output and hit rate are means over all pods. An output's mean is that of the tokens generated
by the requests that ended.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from inflight_settings.limits import Limits
from inflight_simulator.fleet.scalers.hpa import Hpa, replicas_by_total, windows
from inflight_simulator.fleet.scalers.signals import Recent, Traffic, rounded_up
from inflight_simulator.fleet.view import FleetView

KV_SHARE = 0.80
QUEUE_THRESHOLD = 5
UP, DOWN = 0.85, 0.70
PEAK_S, MEANS_S = 60.0, 300.0
SAMPLES = 10
OUTPUT_CLASSES = (100, 500)


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Load of a replica.

    Attributes:
        kv: share of its KV cache, queue: requests that wait; the largest of the last minute each.
        kv_tokens: that its KV cache holds. limits: in force.
    """

    kv: float
    queue: float
    kv_tokens: float
    limits: Limits


@dataclass(frozen=True, slots=True)
class Sizes:
    """Mean tokens of a prompt and of an output, and the share of prompts in the prefix cache."""

    prompt: float
    output: float
    hit_rate: float = 0.0


class ComputeBound:
    """k2: the KV tokens at which a replica's steps, not its memory, are full. Observations while requests waited are
    stored for each class of output lengths."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=SAMPLES))

    def tokens(self, load: ReplicaLoad, sizes: Sizes, memory_bound: float) -> float:
        seen = self._seen[sum(sizes.output >= bound for bound in OUTPUT_CLASSES)]
        if load.queue >= QUEUE_THRESHOLD:
            seen.append(load.kv * load.kv_tokens)
            return seen[-1]
        if seen:
            return fmean(seen)
        return _running_by_limits(load.limits, sizes) * (sizes.prompt + sizes.output / 2) or memory_bound


def _running_by_limits(limits: Limits, sizes: Sizes) -> float:
    """Requests that run where each step's budget is used up by prompts and decodes in their proportion."""
    total = sizes.prompt + sizes.output
    return min(limits.max_num_batched_tokens * sizes.output / total, limits.max_num_seqs) if total else 0.0


def capacity(loads: Sequence[ReplicaLoad], sizes: Sizes, compute: ComputeBound) -> float:
    """KV token capacity of a replica of the variant."""
    bounds = [KV_SHARE * load.kv_tokens for load in loads]
    return median(min(k1, compute.tokens(load, sizes, k1)) for load, k1 in zip(loads, bounds, strict=True))


def demand(loads: Sequence[ReplicaLoad], sizes: Sizes, held: float) -> float:
    """KV tokens that run, wait, or are held in front of the pods; a waiting request costs its whole prompt and output,
    where capacity assumes half of the output."""
    running = sum(load.kv * load.kv_tokens + load.queue * (sizes.prompt + sizes.output) for load in loads)
    return running + held * sizes.prompt * (1 - sizes.hit_rate) + held * sizes.output


def replicas_in_band(wanted: float, each: float, ordered: int, reporting: int, starting: int) -> int:
    """Replicas that bring a demand of `wanted` tokens, at `each` a replica, into the band. Replicas that start have
    full credit at once, however long they load."""
    short = max(0.0, wanted / UP - (reporting + starting) * each)
    if short > 0:
        return ordered + rounded_up(short / each)
    return ordered - max(0, math.floor(round((reporting * each - wanted / DOWN) / each, 9)))


def wva() -> Hpa:
    return Hpa(_Wva(), windows(60.0, 60.0))


class _Wva:
    def __init__(self) -> None:
        self._traffic = Traffic(MEANS_S)
        self._kv: dict[str, Recent] = {}
        self._queue: dict[str, Recent] = {}
        self._compute = ComputeBound()
        self._desired: int | None = None

    def __call__(self, view: FleetView) -> int | None:
        growth, loads = self._traffic.observe(view), self._loads(view)
        if loads:
            sizes = Sizes(growth.prompt or 0.0, growth.output or 0.0, growth.hit_rate)
            each = capacity(loads, sizes, self._compute)
            wanted = demand(loads, sizes, view.gateway_queue)
            starting = view.ordered - len(view.ready)
            desired = replicas_in_band(wanted, max(each, 1.0), view.ordered, len(loads), max(0, starting))
            self._desired = view.bounded(desired)
        return None if self._desired is None else replicas_by_total(self._desired, 1.0, view.ordered)

    def _loads(self, view: FleetView) -> list[ReplicaLoad]:
        loads = []
        for pod in view.ready:
            if pod.sample is None:
                continue
            kv, queue = (of.setdefault(pod.name, Recent(PEAK_S)) for of in (self._kv, self._queue))
            kv.add(view.now, pod.sample.kv_usage or 0.0)
            queue.add(view.now, pod.sample.waiting)
            loads.append(ReplicaLoad(kv.largest, queue.largest, pod.kv_tokens, pod.limits))
        return loads

"""Demand of a service: requests a second and their size, now and over the last minutes, in bounded memory.

Counters of each pod are differenced over that pod's own seconds, and the rates of all pods are added up once a round:
a pod that is added or removed shifts load between pods and does not change the sum. Behind the gateway, requests are
those that arrive there (`decide.replicas.offered`): engines get only what they can start.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, repeat
from operator import itemgetter, lt, mul, sub, truediv
from struct import Struct
from typing import NamedTuple

from inflight_cost.capacity import Replica, Workload
from inflight_cost.model import CostModel, StepWork
from inflight_operator.decide.replicas.foreign_fit import ForeignFit
from inflight_operator.decide.replicas.offered import Engines, Offered
from inflight_operator.observe.gateway_view import GatewayDemand
from inflight_operator.observe.metrics import Sample

SPACING = 2.5
"""Minimum seconds between two points of a series."""

SPAN = 300.0
"""Seconds that a series looks back."""

LONGEST_STEP = 30.0
"""Maximum seconds that one point represents: after a gap in the metrics it does not cover the time before."""

MIN_REQUESTS = 10.0
"""Requests from which their mean size is used, if an earlier one is known."""

YOUNG = 60.0
"""A pod that has been ready for at most so many seconds when it is first seen has counted since then."""

MIN_STEPS = 32
"""Minimum steps of a reliable cost model."""

MAX_ERROR = 0.3
"""Maximum median relative error of a reliable cost model."""

SAME = 0.03
"""Means and cost models within this share of the ones in use are not worth computing capacities anew. Means of few
requests may differ more by chance alone: their standard error comes on top."""

_POINT = Struct("<8d")
_TYPICAL = (StepWork(16, 0, 16_384, 0), StepWork(64, 512, 65_536, 262_144), StepWork(1, 2048, 1024, 2_097_152))
"""Steps by which cost models are compared: decodes alone, decodes with a part of a prompt, and a full prompt."""


class DemandPoint(NamedTuple):
    """Rates of the whole service, per second, from one round to the next.

    Attributes:
        time: steady clock, at its end.
        requests, tokens: arrived requests, and their prompt tokens: at the gateway while all of its pods report them,
            else at engines.
        squares: sum of the squares of prompt lengths.
        queries, hits: prompt tokens looked up in the prefix cache, and found there.
        generated: output tokens.
        first_tokens: requests that got their first token.
    """

    time: float
    requests: float = 0.0
    tokens: float = 0.0
    squares: float = 0.0
    queries: float = 0.0
    hits: float = 0.0
    generated: float = 0.0
    first_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class PodSeen:
    """State of a pod when its counters were last read.

    Attributes:
        time: time of the sample.
        counters: cumulative, as `_counters` has them.
        waiting: requests in its queue.
        rates: a second, as in `DemandPoint`; rejected requests count as accepted.
    """

    time: float
    counters: tuple[float, ...]
    waiting: int
    rates: tuple[float, ...]


_IDLE = (0.0,) * (len(DemandPoint._fields) - 1)
_NOTHING = (0.0,) * (len(_IDLE) + 5)
_UNSEEN = PodSeen(-math.inf, (), 0, _IDLE)
"""A pod that was there when the operator began and has reported nothing yet."""
_ARRIVING = slice(0, 3)
"""Requests, tokens and squares in `PodSeen.rates`."""
_GENERATED, _REFUSED, _STEPS, _GAPS, _STEP_TOKENS, _GAP_SECONDS = 5, 7, 8, 9, 10, 11
"""Indices into `PodSeen.counters`."""
_EXACT = slice(0, _STEP_TOKENS)
"""Counters that never fall. Sums of histograms over several label sets may fall by rounding."""


@dataclass(frozen=True, slots=True)
class DemandHistory:
    """Remembered demand of a service. Bounded: about 120 points, and a few numbers for each pod.

    Attributes:
        pods: last state of each pod, by uid.
        offered: demand at the gateway.
        series: points, packed, oldest first.
        workload: recent requests; None before the first request.
        replica: compute and KV cache of one pod; None before a pod reported them.
        fit: for engines that report no cost model.
    """

    pods: Mapping[str, PodSeen] = field(default_factory=dict)
    offered: Offered = field(default_factory=Offered)
    series: bytes = b""
    workload: Workload | None = None
    replica: Replica | None = None
    fit: ForeignFit = field(default_factory=ForeignFit)

    def with_samples(
        self,
        samples: Mapping[str, Sample],
        ready_for: Mapping[str, float],
        now: float,
        alive: Collection[str] = (),
        gateway: Mapping[str, GatewayDemand] | None = None,
    ) -> DemandHistory:
        """This memory with fresh `samples` of ready pods, by uid.

        Args:
            ready_for: seconds that a pod has been ready, where known.
            alive: existing pods; a pod without samples for a while is still remembered, as its counters continue.
            gateway: counters of all gateway pods; None or empty while they are not known.
        """
        pods, fit = {}, self.fit
        for uid, sample in samples.items():
            pods[uid], grown = _seen(self.pods.get(uid), sample, ready_for.get(uid))
            if grown is not None and sample.limits is None and sample.cost is None:
                steps, tokens, gaps = grown[_STEPS], grown[_STEP_TOKENS], grown[_GAPS]
                fit = fit.with_interval(steps, tokens, grown[_GENERATED], gaps, grown[_GAP_SECONDS])
        series, offered = self.series, self.offered
        last = _time(series, len(series) - _POINT.size) if series else -math.inf
        if (samples or gateway) and now - last >= SPACING:
            rates = [sum(column) for column in zip(_IDLE, *(pod.rates for pod in pods.values()), strict=True)]
            if gateway:
                # Counters of pods that all are new have no growth yet: engines know more.
                growing = not offered.pods.keys().isdisjoint(gateway)
                width = min(now - last, LONGEST_STEP) if series and growing else 0.0
                offered = offered.with_counters(gateway, Engines(*rates[_ARRIVING]), now, width)
                if growing:
                    rates[_ARRIVING] = offered.latest
            elif offered.outdated(now):
                offered = Offered(unit=offered.unit)
            starts = range(0, len(series), _POINT.size)
            kept = next((start for start in starts if _time(series, start) >= now - SPAN), len(series))
            series = series[kept:] + _POINT.pack(now, *rates)
        # A pod older than the operator may have served for days, even if it becomes ready only now.
        known = self.pods if self.series else {**dict.fromkeys(alive, _UNSEEN), **self.pods}
        silent = {uid: pod for uid, pod in known.items() if uid in alive and uid not in samples}
        history = replace(self, pods={**silent, **pods}, offered=offered, series=series)
        if not samples:
            return history
        fitted = fit.cost() if fit is not self.fit else None
        ratio = offered.output_ratio if gateway else 1.0
        workload = _workload(history.points, samples.values(), pods.values(), self.workload, bool(gateway), ratio)
        replica = _replica(samples.values(), fitted, self.replica)
        return replace(history, workload=workload, replica=replica, fit=fit)

    @property
    def points(self) -> tuple[DemandPoint, ...]:
        return points_of(self.series)

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens a second at engines over the whole series, those found in the prefix cache among
        them."""
        steps = list(_steps(self.points))
        seconds = sum(width for width, _ in steps)
        if not seconds:
            return 0.0
        prompts = self.offered.served or sum(width * point.tokens for width, point in steps) / seconds
        return prompts + sum(width * point.generated for width, point in steps) / seconds


@lru_cache(maxsize=4)
def points_of(series: bytes) -> tuple[DemandPoint, ...]:
    """Returns the points of a packed series, which a round reads several times."""
    return tuple(map(DemandPoint._make, _POINT.iter_unpack(series)))


def _time(series: bytes, start: int) -> float:
    """Returns the time of the point that begins at `start`, in bytes."""
    return float(_POINT.unpack_from(series, start)[0])


@dataclass(frozen=True, slots=True)
class DemandView:
    """The inputs of the decision on the number of replicas.

    Attributes:
        time: steady clock, seconds.
        calendar: the same moment, seconds since the epoch.
        points: rates of the last minutes, oldest first.
        workload: statistics of requests; None before the first request.
        replica: cost model and KV cache of one pod; None while no pod reports them.
        waiting, running: requests, over all pods.
        waiting_tokens: uncomputed prompt tokens, over all pods.
        ready: replicas that take requests. ready_for: seconds for which the first of them has been ready.
        starting: seconds until each ordered replica that starts is expected to be ready, ascending.
        start_up: seconds from the order of a replica until requests are sent to it, see `start_up.LeadTime`.
        pooled: requests go to the replica with the least work; else anywhere.
        ordered: engines serve first what can still keep its TTFT target; else first come, first served.
        tighten: share of the TPOT target that tuning solves for.
    """

    time: float
    calendar: float
    points: tuple[DemandPoint, ...]
    workload: Workload | None
    replica: Replica | None
    waiting: int
    running: int
    waiting_tokens: float
    ready: int
    starting: tuple[float, ...]
    start_up: float
    ready_for: float = 0.0
    pooled: bool = False
    ordered: bool = False
    tighten: float = 1.0

    @property
    def credited(self) -> int:
        """Replicas that are capacity, now or soon."""
        return self.ready + len(self.starting)

    def seconds(self, span: float) -> float:
        """The part of the last `span` seconds that the series covers."""
        return min(span, self.time - self.points[0].time) if self.points else 0.0

    def rate(self, span: float) -> float:
        """Requests a second over the last `span` seconds."""
        return mean_rate(self.points, self.time - span)

    def dispersion(self, span: float, bin_s: float) -> float:
        """Index of dispersion of the requests in bins of about `bin_s` seconds: variance by mean, 1 for a Poisson
        process. Steps between neighbouring bins are taken (von Neumann), so that a trend is no variance. 1 where the
        series is too short."""
        bins = _binned([point for point in self.points if point.time > self.time - span], bin_s)
        if len(bins) < 4:
            return 1.0
        mean = sum(rate * seconds for rate, seconds in bins) / sum(seconds for _, seconds in bins)
        if mean <= 0:
            return 1.0
        steps = [(now - was) ** 2 / (1 / width + 1 / other) for (was, other), (now, width) in pairwise(bins)]
        return sum(steps) / len(steps) / mean


def mean_rate(points: Sequence[DemandPoint], start: float) -> float:
    """Requests a second after `start`; 0 without points."""
    total, seconds = 0.0, 0.0
    after = bisect_right(points, start, key=itemgetter(0))
    for width, point in _steps(points[max(0, after - 1) :]):
        width = min(width, point.time - start)
        total += point.requests * width
        seconds += width
    if seconds > 0:
        return total / seconds
    return points[-1].requests if points else 0.0


def _steps(points: Sequence[DemandPoint]) -> Iterator[tuple[float, DemandPoint]]:
    """Each point but the first, with the seconds that it stands for."""
    for was, point in pairwise(points):
        yield min(point.time - was.time, LONGEST_STEP), point


def _binned(points: Sequence[DemandPoint], bin_s: float) -> list[tuple[float, float]]:
    """Rate and seconds of bins of at least `bin_s` seconds."""
    bins, requests, seconds = [], 0.0, 0.0
    for width, point in _steps(points):
        requests += point.requests * width
        seconds += width
        if seconds >= bin_s:
            bins.append((requests / seconds, seconds))
            requests, seconds = 0.0, 0.0
    return bins


def _seen(before: PodSeen | None, sample: Sample, ready_for: float | None) -> tuple[PodSeen, tuple[float, ...] | None]:
    """`sample` with the rates since `before`, and the growth of its counters; None without new data."""
    if before is not None and sample.time <= before.time:
        return before, None
    counters = _counters(sample)
    if before == _UNSEEN:
        return PodSeen(sample.time, counters, sample.waiting, _IDLE), None
    if before is not None:
        anew = any(map(lt, counters[_EXACT], before.counters[_EXACT]))
        was, seconds, waited = (_NOTHING if anew else before.counters), sample.time - before.time, before.waiting
    elif ready_for is not None and 0 < ready_for <= YOUNG:
        was, seconds, waited = _NOTHING, ready_for, 0
    else:
        return PodSeen(sample.time, counters, sample.waiting, _IDLE), None
    grown = tuple(map(max, map(sub, counters, was), repeat(0.0)))
    arrived, *rest = grown[: len(_IDLE)]
    if sample.arrived:
        taken = arrived / (arrived + grown[_REFUSED]) if arrived else 1.0
        arrived, rest[0], rest[1] = arrived + grown[_REFUSED], rest[0] / taken, rest[1] / taken
    else:
        # An engine that does not report arrivals: first tokens plus growth of the queue.
        arrived = max(0.0, rest[-1] + sample.waiting - waited)
    rates = tuple(map(truediv, (arrived, *rest), repeat(seconds)))
    return PodSeen(sample.time, counters, sample.waiting, rates), grown


def _counters(sample: Sample) -> tuple[float, ...]:
    """Returns the counters in the order of `DemandPoint`, then refused requests, steps, inter-token latencies, and the
    sums of both."""
    return (
        sample.arrived,
        sample.arrived_tokens if sample.arrived else sample.prompt_tokens,
        sample.arrived_squares,
        sample.prefix_queries,
        sample.prefix_hits,
        sample.generation_tokens,
        sample.ttft.count,
        sample.refused,
        sample.step_tokens.count,
        sample.itl.count,
        sample.step_tokens.total,
        sample.itl.total,
    )


def _workload(
    points: Sequence[DemandPoint],
    samples: Collection[Sample],
    pods: Collection[PodSeen],
    before: Workload | None,
    gateway: bool,
    ratio: float,
) -> Workload | None:
    """Workload of the whole series; `before` if nearly unchanged, or if there were too few requests.

    Args:
        gateway: True if the gateway counts requests.
        ratio: output of a request that arrives, by that of one at an engine.
    """
    if len(points) < 2:
        return before
    times, *columns = zip(*points, strict=True)
    widths = [0.0, *(min(now - was, LONGEST_STEP) for was, now in pairwise(times))]
    sums = [sum(map(mul, widths, column)) for column in columns]
    requests, tokens, squares, queries, hits, generated, first_tokens = sums
    reported = any(sample.arrived for sample in samples)
    counted = requests if reported or gateway else first_tokens
    if counted <= 0 or tokens <= 0 or (before is not None and counted < MIN_REQUESTS):
        return before
    prompt = tokens / counted
    output = _outputs(samples, pods) if reported else (generated / first_tokens if first_tokens else 0.0, 0.0)
    if output is None or output[0] <= 0:
        return before
    mean, square = output[0] * ratio, output[1] * ratio**2
    # Lengths of which only the mean is known are taken as exponentially distributed: twice its square.
    found = Workload(
        prompt=prompt,
        computed=prompt * (1 - min(1.0, hits / queries)) if queries > 0 else prompt,
        prompt_square=max(squares / counted, prompt**2) if squares > 0 else 2 * prompt**2,
        output=mean,
        output_square=max(square, mean**2) if square > 0 else 2 * mean**2,
    )
    return before if before is not None and _alike(before, found, SAME + 1 / math.sqrt(counted)) else found


def _outputs(samples: Collection[Sample], pods: Collection[PodSeen]) -> tuple[float, float] | None:
    """Mean output tokens and mean of their squares, pods weighing as much as they have requests."""
    weight = mean = square = 0.0
    for sample, pod in zip(samples, pods, strict=True):
        if sample.output_mean is not None:
            share = max(pod.rates[0], 1e-3)
            weight += share
            mean += share * sample.output_mean
            square += share * (sample.output_square or 2 * sample.output_mean**2)
    return (mean / weight, square / weight) if weight else None


def _alike(was: Workload, now: Workload, share: float) -> bool:
    """Mean squares may differ twice as much as means."""
    return all(
        abs(one - other) <= tolerance * max(one, other)
        for one, other, tolerance in (
            (was.prompt, now.prompt, share),
            (was.computed, now.computed, share),
            (was.prompt_square, now.prompt_square, 2 * share),
            (was.output, now.output, share),
            (was.output_square, now.output_square, 2 * share),
        )
    )


def _replica(samples: Collection[Sample], fitted: CostModel | None, before: Replica | None) -> Replica | None:
    """The cost model of the pod in the middle, with the KV cache of the pod in the middle; `before` if nearly
    unchanged, or if no pod has a reliable model.

    Args:
        fitted: for engines that report none.
    """
    models = [
        (sum(seconds), seconds, sample.cost)
        for sample in samples
        if sample.cost is not None
        and sample.cost_steps >= MIN_STEPS
        and sample.cost_error is not None
        and sample.cost_error <= MAX_ERROR
        for seconds in [_typical(sample.cost)]
    ]
    if not models and fitted is not None:
        models = [(0.0, _typical(fitted), fitted)]
    sizes = sorted(sample.kv_tokens for sample in samples if sample.kv_tokens)
    if not models or not sizes:
        return before
    models.sort(key=itemgetter(0))
    _, seconds, cost = models[(len(models) - 1) // 2]
    kv_tokens = float(sizes[(len(sizes) - 1) // 2])
    if before is not None and before.kv_tokens == kv_tokens:
        known = _typical(before.cost)
        if all(abs(one - other) <= SAME * max(one, other) for one, other in zip(known, seconds, strict=True)):
            return before
    return Replica(cost, kv_tokens)


@lru_cache(maxsize=8192)
def _typical(cost: CostModel) -> tuple[float, ...]:
    return tuple(cost.seconds(work) for work in _TYPICAL)

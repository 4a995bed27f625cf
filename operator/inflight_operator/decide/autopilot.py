"""How many replicas demand needs, by the measured cost model: rate by capacity, and what must stand on top of it.

Capacity is what one replica carries within its latency targets with the limits that tuning would set for it, so that a
limit is moved before a replica is ordered. On top come a margin for the variance of arrivals (square-root staffing:
its share falls as the fleet grows), what waits, and demand that rises until a replica ordered now is ready. What was
needed lately, and at this time yesterday and a week ago, is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from struct import Struct

from inflight_cost.capacity import Margins, Replica, StepLimits, Targets, Workload, largest_rate
from inflight_cost.limits import best_limits
from inflight_operator.decide.decision import Number, Reason
from inflight_operator.decide.demand import DemandPoint, DemandView
from inflight_operator.decide.scaling import Ask
from inflight_operator.limits import LimitsBounds

SLOT = 300.0
"""Seconds of the week that one peak stands for."""

_DAY, _WEEK = 288, 2016
"""Slots."""

_PEAK = Struct("<f")


@dataclass(frozen=True, slots=True)
class AutopilotPolicy:
    """One set for all services; durations in seconds.

    Attributes:
        margins: distance of the means to the targets, of which the tails need some.
        z: standard deviations of the arrivals that replicas stand ready for.
        level: the rate is the mean of this time.
        trend: its slope is that of this time.
        significance: standard deviations from which a slope is one.
        variance: index of dispersion is taken over this time.
        horizon: for which the variance of arrivals must be carried; longer bursts are demand.
        recovery: in which what waits must be gone once ordered replicas are ready.
        farthest: that demand is extrapolated at most, however long replicas take to start.
        hold: for which what was needed stays.
        season: share of what was needed at this time yesterday and a week ago that stands ready.
        tolerance: share of a replica that is not ordered for.
    """

    margins: Margins = field(default_factory=Margins)
    z: float = 1.0
    level: float = 30.0
    trend: float = 120.0
    significance: float = 2.0
    variance: float = 300.0
    horizon: float = 15.0
    recovery: float = 30.0
    farthest: float = 300.0
    hold: float = 600.0
    season: float = 0.9
    tolerance: float = 0.05


@dataclass(frozen=True, slots=True)
class DemandMemory:
    """What one decision leaves to the next.

    Attributes:
        recent: (time, replicas needed) of the last `hold` seconds, each larger than all that came later.
        week: peak of each slot of the week, packed; 0 where none is known. Empty before the first slot is over.
        slot: the slot that goes on, counted from the epoch, and its peak so far.
    """

    recent: tuple[tuple[float, float], ...] = ()
    week: bytes = b""
    slot: tuple[int, float] | None = None

    def with_need(self, view: DemandView, need: float, hold: float) -> DemandMemory:
        kept = (one for one in self.recent if view.time - one[0] < hold and one[1] > need)
        recent = (*kept, (view.time, need))
        now = int(view.calendar // SLOT)
        if self.slot is None or self.slot[0] == now:
            peak = max(need, self.slot[1] if self.slot is not None else 0.0)
            return replace(self, recent=recent, slot=(now, peak))
        week = bytearray(self.week or bytes(_WEEK * _PEAK.size))
        _PEAK.pack_into(week, self.slot[0] % _WEEK * _PEAK.size, self.slot[1])
        return DemandMemory(recent, bytes(week), (now, need))

    def peak(self, slot: int) -> float:
        """Replicas that were needed in the last such slot of the week that is over; 0 where that is not known."""
        return _PEAK.unpack_from(self.week, slot % _WEEK * _PEAK.size)[0] if self.week else 0.0

    def season(self, calendar: float, ahead: float) -> float:
        """What was needed yesterday and a week ago from this time on for `ahead` seconds: the smaller of the two where
        both are known, 0 where none is."""
        slots = range(int(calendar // SLOT), int((calendar + ahead) // SLOT) + 1)
        known = [max(self.peak(slot - back) for slot in slots) for back in (_DAY, _WEEK)]
        return min((peak for peak in known if peak > 0), default=0.0)


def decide_replicas(
    view: DemandView,
    targets: Targets,
    limits_bounds: LimitsBounds,
    memory: DemandMemory,
    policy: AutopilotPolicy | None = None,
) -> tuple[int, Reason, DemandMemory]:
    """Replicas that hold the targets, counting those ordered and on their way, with the numbers that say why.

    Args:
        view: with `replica` and `workload`.
        limits_bounds: that tuning may move the limits in.
    """
    assert view.replica is not None
    assert view.workload is not None
    policy = policy or AutopilotPolicy()
    each, met = capacity_within(view.replica, view.workload, targets, limits_bounds, policy.margins)
    ahead = min(view.start_up, policy.farthest)
    rate = view.rate(policy.level)
    dispersion = max(1.0, view.dispersion(policy.variance, policy.horizon))
    expected = rate + _rise(view, rate, dispersion, ahead, policy)
    margin = _margin(view.workload, expected, dispersion, policy) / each
    backlog = _backlog(view, rate, each, ahead) / (each * policy.recovery)
    need = expected / each + margin + backlog
    memory = memory.with_need(view, need, policy.hold)

    lately = memory.recent[0][1]
    season = policy.season * memory.season(view.calendar, ahead + SLOT)
    wanted = max(need, lately, season)
    replicas = max(1, math.ceil(wanted - policy.tolerance))
    numbers: dict[str, Number] = {
        "replicas": replicas,
        "rate": expected,
        "prompt": view.workload.prompt,
        "output": view.workload.output,
        "need": expected / each,
        "each": each,
        "margin": margin,
    }
    if view.waiting and backlog > 0:
        numbers |= {"waiting": view.waiting, "backlog": backlog}
    if replicas > view.ready:
        numbers["ready"] = max(view.starting, default=0.0) if replicas <= view.credited else view.start_up
    held = None
    if wanted > need and replicas > max(1, math.ceil(need - policy.tolerance)):
        if lately >= season:
            held = Reason("LatelyNeeded", {"lately": lately})
        else:
            held = Reason("SeasonNeeded", {"lately": season})
    if not met:
        held = Reason("TargetsOutOfReach", held=held)
    if replicas < view.credited and view.seconds(policy.level) < policy.level - 1:
        replicas, held = view.credited, Reason("DemandNotKnown", held=held)
    return replicas, Reason("Demand", numbers, held), memory


def unsized_demand(view: DemandView, policy: AutopilotPolicy | None = None) -> Ask:
    """What to ask for before a request has shown how large requests are: nothing once none came for a while, else that
    no replica goes."""
    level = (policy or AutopilotPolicy()).level
    if view.rate(level) > 0 or view.waiting or view.running or view.seconds(level) < level - 1:
        return Ask(view.credited, Reason("DemandNotKnown"))
    return Ask(1, Reason("NoDemand"))


def capacity_within(
    replica: Replica, workload: Workload, targets: Targets, bounds: LimitsBounds, margins: Margins
) -> tuple[float, bool]:
    """Requests a second that one replica carries within its targets, with the limits that are best within `bounds`,
    and whether it can keep them at all; where it cannot, what it carries without them."""
    low = StepLimits(bounds.low.max_num_seqs, bounds.low.max_num_batched_tokens)
    high = StepLimits(bounds.high.max_num_seqs, bounds.high.max_num_batched_tokens)
    for aim in (targets, Targets(targets.ttft), Targets()):
        rate = _capacity(replica, workload, aim, low, high, margins)
        if rate > 0:
            return rate, aim == targets
    return 1e-3, False


@lru_cache(maxsize=8192)
def _capacity(
    replica: Replica, workload: Workload, targets: Targets, low: StepLimits, high: StepLimits, margins: Margins
) -> float:
    limits = best_limits(replica, workload, targets, low, high, None, margins)
    return largest_rate(replica, workload, targets, limits, margins)


def _rise(view: DemandView, rate: float, dispersion: float, ahead: float, policy: AutopilotPolicy) -> float:
    """Requests a second that come on top of `rate` in `ahead` seconds if demand goes on to rise as it does."""
    points = [point for point in view.points if point.time > view.time - policy.trend]
    span = points[-1].time - points[0].time if points else 0.0
    if span < policy.trend / 2 or rate <= 0:
        return 0.0
    slope = _slope(points)
    # Of a Poisson process the least-squares slope over a time T has the variance 12 rate / T^3.
    noise = math.sqrt(12 * dispersion * rate / span**3)
    return slope * (ahead + policy.level / 2) if slope > policy.significance * noise else 0.0


def _slope(points: list[DemandPoint]) -> float:
    """Least squares: requests a second, per second."""
    middle = sum(point.time for point in points) / len(points)
    mean = sum(point.requests for point in points) / len(points)
    across = sum((point.time - middle) * (point.requests - mean) for point in points)
    spread = sum((point.time - middle) ** 2 for point in points)
    return across / spread if spread > 0 else 0.0


def _margin(workload: Workload, rate: float, dispersion: float, policy: AutopilotPolicy) -> float:
    """Requests a second above the mean that come by chance: `z` standard deviations over the horizon, of requests of
    unequal size."""
    unequal = max(1.0, workload.prompt_square / max(1.0, workload.prompt) ** 2)
    return policy.z * math.sqrt(unequal * dispersion * rate / policy.horizon)


def _backlog(view: DemandView, rate: float, each: float, ahead: float) -> float:
    """Requests that still wait when a replica that is ordered now is ready."""
    assert view.workload is not None
    waiting = view.waiting_tokens / max(1.0, view.workload.prompt) if view.waiting_tokens else float(view.waiting)
    done = each * (view.ready * ahead + sum(max(0.0, ahead - left) for left in view.starting))
    return max(0.0, waiting + rate * ahead - done)

"""Replicas needed for the demand, by the measured cost model.

The capacity of one replica follows from the cost model, with the limits that tuning would set for it, so that tuning
changes a limit before scaling adds a replica. Replicas are then sized as servers of a queue: the smallest number with
which all but a small share of the expected and waiting requests start within the TTFT target, with room for some growth
(`inflight_cost.staffing`). Share and room fall with the number of replicas, from those that one replica may have.

The forecast is the current demand plus its statistically significant trend until a replica ordered now is ready.
If demand recently jumped faster than replicas start, no forecast helps: enough replicas for such a jump are kept, up to
a little more than the last peaks needed. Replicas that were needed at this time yesterday and a week ago are kept
ready, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from inflight_cost.capacity import Margins, Replica, Steady, Targets, Workload, largest_rate, steady
from inflight_cost.limits import best_limits
from inflight_cost.staffing import Staffing, share_late, smallest
from inflight_operator.decide.decision import Number, Reason
from inflight_operator.decide.replicas.demand import SPAN, DemandPoint, DemandView
from inflight_operator.decide.replicas.scaling import Recommendation
from inflight_settings.limits import Limits, LimitsBounds

SLOT = 300.0
"""Length of a slot of the week in seconds; each slot has one peak."""

_DAY, _WEEK = 288, 2016
"""Slots in a day and in a week."""

_PEAK, _SPELL = Struct("<f"), Struct("<3dI")

SPELL = 15.0
"""Length of an entry of the recent past in seconds."""


@dataclass(frozen=True, slots=True)
class AutopilotPolicy:
    """Parameters of the autopilot, the same for all services; durations in seconds.

    Attributes:
        margins: distance of the means to the targets, beside the one that staffing keeps to the TTFT target.
        late: share of requests that may start late by chance, in a large fleet.
        alone: the same of a single replica: that of targets for 95 of 100 requests, as a second one doubles the cost.
        growth, room: growth of demand for which there is room, as the next replica takes time: a share of it, but at
            most `room` of what a replica gets of it.
        young: in a service's first seconds one replica has room for so much more, less and less up to `level`: demand
            may only begin.
        untried: the same of more replicas, while growth within the time that a replica takes to start may not have
            been seen yet: by the rule of succession, up to `remember`.
        fast, level: the rate is the mean of the last `level` seconds, or of the last `fast` ones where that is
            significantly more.
        sureness: standard deviations that count as significant for `fast`, and for a `level` not seen for so long.
        hold: standard deviations of the rate by which demand may rise again before a replica goes.
        trend: the slope of demand is computed over this time.
        significance: standard deviations from which a slope is significant; one is looked for in each round.
        most_trend: share of the rate that is added at most for its slope.
        variance, bin: the index of dispersion is taken over `variance` seconds in bins of `bin`.
        recovery: time within which the backlog should be processed.
        remember: retention of jumps and peaks; growth that was not seen for so long is not expected.
        cold: initial time of a service in which growth does not count as a jump.
        headroom: above the last peaks, for which replicas stand ready where demand jumps.
        brief: share of the remembered time that a peak must have lasted.
        farthest: maximum extrapolation of demand, however long replicas take to start.
        season: share of the replicas needed at this time yesterday and a week ago that stands ready.
    """

    margins: Margins = field(default_factory=lambda: Margins(prefill=1.0))
    late: float = 0.015
    alone: float = 0.05
    growth: float = 0.3
    room: float = 1.0
    young: float = 1.8
    untried: float = 1.0
    fast: float = 15.0
    level: float = 60.0
    sureness: float = 1.5
    hold: float = 2.0
    trend: float = 180.0
    significance: float = 3.0
    most_trend: float = 0.1
    variance: float = 300.0
    bin: float = 3.0
    recovery: float = 60.0
    remember: float = 1200.0
    cold: float = 150.0
    headroom: float = 1.2
    brief: float = 0.03
    farthest: float = 300.0
    season: float = 0.9


class Spell(NamedTuple):
    """`SPELL` seconds of the past.

    Attributes:
        begin: steady clock.
        load: replicas that the demand would have kept busy, the mean.
        need: replicas that were needed for it without room for growth, the mean.
        rounds: number of rounds that both are the mean of.
    """

    begin: float
    load: float
    need: float
    rounds: int = 1

    def with_(self, load: float, need: float) -> Spell:
        rounds = self.rounds + 1
        return Spell(
            self.begin, self.load + (load - self.load) / rounds, self.need + (need - self.need) / rounds, rounds
        )


@dataclass(frozen=True, slots=True)
class DemandMemory:
    """State carried from one decision to the next. Bounded.

    Attributes:
        since: when the service was first seen; None before.
        jump: the largest factor by which demand grew within the time that a replica takes to start; 1 if it never did.
        past: spells of the last `AutopilotPolicy.remember` seconds, oldest first, packed.
        week: peak of each slot of the week, packed; 0 where none is known. Empty before the first slot is over.
        slot: the current slot, counted from the epoch, and its peak so far.
    """

    since: float | None = None
    jump: float = 1.0
    past: bytes = b""
    week: bytes = b""
    slot: tuple[int, float] | None = None

    def with_need(
        self, view: DemandView, load: float, need: float, start_up: float, policy: AutopilotPolicy
    ) -> DemandMemory:
        """This memory with the result of a round: replicas kept busy by the demand, and replicas needed for it without
        room for growth: `headroom` and jumps are growth."""
        since = view.time if self.since is None else self.since
        jump, past = self.jump, self.past
        last = Spell(*_SPELL.unpack_from(past, len(past) - _SPELL.size)) if past else None
        if last is not None and view.time - last.begin < SPELL:
            past = past[: -_SPELL.size] + _SPELL.pack(*last.with_(load, need))
        else:
            spells = [one for one in self.spells if view.time - one.begin < policy.remember]
            spells.append(Spell(view.time, load, need))
            past = b"".join(_SPELL.pack(*one) for one in spells)
            jump = _jump([one for one in spells if one.begin - since >= policy.cold - start_up - 2 * SPELL], start_up)
        now = int(view.calendar // SLOT)
        if self.slot is None or self.slot[0] == now:
            peak = max(need, self.slot[1] if self.slot is not None else 0.0)
            return DemandMemory(since, jump, past, self.week, (now, peak))
        week = bytearray(self.week or bytes(_WEEK * _PEAK.size))
        _PEAK.pack_into(week, self.slot[0] % _WEEK * _PEAK.size, self.slot[1])
        return DemandMemory(since, jump, past, bytes(week), (now, need))

    @property
    def spells(self) -> tuple[Spell, ...]:
        return tuple(map(Spell._make, _SPELL.iter_unpack(self.past)))

    def peak_need(self, brief: float) -> float:
        """Replicas needed in the last peaks, without peaks shorter than the share `brief`."""
        needs = sorted((spell.need for spell in self.spells), reverse=True)
        return needs[min(len(needs) - 1, int(brief * len(needs)))] if needs else 0.0

    def peak(self, slot: int) -> float:
        """Peak of replicas in the most recent completed occurrence of this slot of the week; 0 if unknown."""
        return _PEAK.unpack_from(self.week, slot % _WEEK * _PEAK.size)[0] if self.week else 0.0

    def season(self, calendar: float, ahead: float) -> float:
        """Replicas needed yesterday and a week ago in the `ahead` seconds from this time on: the smaller of the two if
        both are known, 0 if none is."""
        slots = range(int(calendar // SLOT), int((calendar + ahead) // SLOT) + 1)
        known = [max(self.peak(slot - back) for slot in slots) for back in (_DAY, _WEEK)]
        return min((peak for peak in known if peak > 0), default=0.0)


def _jump(spells: Sequence[Spell], start_up: float) -> float:
    """Returns the ratio of the largest load to the smallest just before the latest time to order a replica for it; at
    least 1."""
    most = 1.0
    for index, spell in enumerate(spells):
        latest = spell.begin - start_up
        before = [one.load for one in spells[:index] if latest - 2 * SPELL <= one.begin <= latest]
        if before:
            most = max(most, spell.load / max(min(before), _SMALLEST_LOAD))
    return most


_SMALLEST_LOAD = 0.3
"""Load in replicas: growth from below this does not count as a jump."""

_JUMPY = 1.6
"""Factor of a jump above which the last peaks get `AutopilotPolicy.headroom`: they may not be the highest ones."""


def decide_replicas(
    view: DemandView,
    targets: Targets,
    limits_bounds: LimitsBounds,
    memory: DemandMemory,
    policy: AutopilotPolicy | None = None,
) -> tuple[int, Reason, DemandMemory, Sizing]:
    """Returns the replicas that hold the targets, counting those ordered and on their way, with the numbers that say
    why.

    Args:
        view: with `replica` and `workload`.
        limits_bounds: bounds in which tuning may move the limits.
    """
    assert view.replica is not None
    assert view.workload is not None
    policy = policy or AutopilotPolicy()
    capacity = capacity_within(view.replica, view.workload, targets, limits_bounds, policy.margins, view.tighten)
    each = capacity.rate
    ahead = min(view.start_up, policy.farthest)
    dispersion = max(1.0, view.dispersion(policy.variance, policy.bin))
    rate = _rate(view, dispersion, policy)
    expected = rate + _rise(view, rate, dispersion, ahead, policy)
    sizing = Sizing(expected, each, expected / each)
    queues = _queues(view, capacity, policy, memory.since)
    waiting = _waiting(view)
    # Requests a second, beside those that arrive, while what waits is worked off.
    beside = waiting / policy.recovery
    sized = expected
    need = queues.replicas(sized, beside)
    if need < view.credited:
        # A replica goes once demand is lower by more than chance.
        risen = expected + policy.hold * math.sqrt(rate / policy.level)
        kept = min(view.credited, queues.replicas(risen, beside))
        if kept > need:
            need, sized = kept, risen
    memory = memory.with_need(view, sizing.need, queues.replicas(expected, growing=False), ahead, policy)

    lately = 0
    if memory.jump > 1 + policy.growth:
        peak = memory.peak_need(policy.brief) * (policy.headroom if memory.jump > _JUMPY else 1.0)
        lately = min(round(peak), queues.replicas(expected * memory.jump, growing=False))
    season = math.ceil(policy.season * memory.season(view.calendar, ahead + SLOT))
    replicas = max(need, lately, season)
    held = None
    if replicas > need:
        held = Reason("LatelyNeeded" if lately >= season else "SeasonNeeded", {"more": replicas - need})
    if capacity.aim != targets:
        held = Reason("TargetsOutOfReach", {"ttft": capacity.aim.ttft is not None}, held)
    if replicas < view.credited and view.seconds(policy.level) < policy.level - 1:
        held = Reason("DemandNotKnown", {"more": view.credited - replicas}, held)
        replicas = view.credited
    numbers: dict[str, Number] = {
        "replicas": replicas,
        "rate": sizing.rate,
        "prompt": view.workload.prompt,
        "output": view.workload.output,
        "need": sizing.need,
        "each": sizing.each,
        "margin": need - sizing.need - beside / each,
    }
    if beside:
        numbers |= {"waiting": view.waiting or math.ceil(waiting), "backlog": beside / each}
    if need > 1:
        grown = (1 + queues.growth(need - 1)) * sized + beside
        numbers |= {"late": queues.late(need - 1, grown), "growth": grown / (expected + beside) - 1}
    if replicas > view.ready:
        numbers["ready"] = max(view.starting, default=0.0) if replicas <= view.credited else view.start_up
    return replicas, Reason("Demand", numbers, held), memory, sizing


def unsized_demand(view: DemandView, policy: AutopilotPolicy | None = None) -> Recommendation:
    """The recommendation before the size of requests is known: 1 replica if no request arrived for a while, else no
    change."""
    level = (policy or AutopilotPolicy()).level
    if view.rate(level) > 0 or view.waiting or view.running or view.seconds(level) < level - 1:
        return Recommendation(view.credited, Reason("DemandNotKnown"))
    return Recommendation(1, Reason("NoDemand"))


class Sizing(NamedTuple):
    """Demand against capacity.

    Attributes:
        rate: requests a second that are expected when a replica ordered now is ready.
        each: requests a second that one replica sustains, within the targets if it can keep them.
        need: replicas that carry `rate`, without margin.
    """

    rate: float
    each: float
    need: float


class Capacity(NamedTuple):
    """Capacity of one replica.

    Attributes:
        rate: requests a second.
        aim: targets that it keeps: without those that no rate keeps.
        limits: limits that tuning would set.
        state: state of the replica at that rate.
    """

    rate: float
    aim: Targets
    limits: Limits
    state: Steady


def capacity_within(
    replica: Replica,
    workload: Workload,
    targets: Targets,
    bounds: LimitsBounds,
    margins: Margins,
    tighten: float = 1.0,
) -> Capacity:
    """Returns the capacity of a replica with the limits that are best within `bounds`.

    Args:
        tighten: share of the TPOT target that tuning solves for; one that is out of reach counts as all of it.
    """
    free = _capacity(replica, workload, Targets(), bounds, margins)
    aims = (targets, targets, replace(targets, tpot=None), Targets())
    for aim, share in zip(aims, (tighten, 1.0, 1.0, 1.0), strict=True):
        found = _capacity(replica, workload, aim.tightened(share), bounds, margins)
        if found.rate > 0 and found.rate >= _WITHIN_REACH * free.rate:
            return found._replace(aim=aim)
    return Capacity(1e-3, Targets(), bounds.low, Steady(math.inf, 1.0, 1.0, 1.0))


@lru_cache(maxsize=8192)
def _capacity(
    replica: Replica, workload: Workload, targets: Targets, bounds: LimitsBounds, margins: Margins
) -> Capacity:
    limits = best_limits(replica, workload, targets, bounds, margins=margins)
    rate = largest_rate(replica, workload, targets, limits, margins)
    return Capacity(rate, targets, limits, steady(replica, workload, rate, limits))


def _rate(view: DemandView, dispersion: float, policy: AutopilotPolicy) -> float:
    """Returns the requests per second that arrive now.

    Args:
        dispersion: variance of counts over their mean.
    """
    level, seen = view.rate(policy.level), view.seconds(policy.level)
    known = seen / policy.level
    if known < 1:
        # One request in the first seconds of a service is no rate yet: what is certain counts, and the time before as
        # silence. Certainty is asked for less and less, so that the rate makes no step when the time is over.
        level = max(level * known, _surely(level, seen, dispersion, (1 - known) * policy.sureness))
    return max(level, _surely(view.rate(policy.fast), view.seconds(policy.fast), dispersion, policy.sureness))


def _surely(rate: float, seconds: float, dispersion: float, sureness: float) -> float:
    """Returns `rate`, measured over `seconds`, less `sureness` times its standard error."""
    return rate - sureness * math.sqrt(dispersion * rate / max(1.0, seconds))


class _Queues(NamedTuple):
    """Queues of a replica.

    Attributes:
        prefill: prompts, at the replica's capacity: computed one after another, each in the share of the time that full
            steps leave them.
        decode: requests that decode side by side after that, as many as a replica's rate comes to.
    """

    replica: Replica
    workload: Workload
    capacity: Capacity
    prefill: Staffing
    decode: Staffing
    policy: AutopilotPolicy
    young: float
    untried: float

    def replicas(self, rate: float, beside: float = 0.0, *, growing: bool = True) -> int:
        """Returns the fewest replicas that carry the requests per second and begin them in time, but for a share.

        Args:
            rate: of those that arrive.
            beside: of those that wait, which do not grow.
            growing: with room for `growth`.
        """
        policy, least = self.policy, max(1, math.ceil((rate + beside) / self.capacity.rate))
        spread = policy.alone - policy.late

        def suffice(replicas: int) -> bool:
            grown = (1 + self.growth(replicas)) * rate if growing else rate
            return replicas >= least and self.late(replicas, grown + beside) <= policy.late + spread / replicas

        return smallest(suffice, least, _MOST_REPLICAS) or _MOST_REPLICAS

    def growth(self, replicas: int) -> float:
        """Returns the growth of demand for which so many replicas have room, as a share."""
        steady = min(self.policy.growth, self.policy.room / replicas)
        return steady + (self.young if replicas == 1 else self.untried)

    def late(self, replicas: int, rate: float) -> float:
        """Returns the share of `rate` requests per second that start late."""
        if rate <= 0:
            return 0.0
        # A replica that is not full takes less time for its steps.
        state = steady(self.replica, self.workload, rate / replicas, self.capacity.limits)
        shorter = min(1.0, state.running * replicas / rate * self.capacity.rate / self.capacity.state.running)
        prefill = self.prefill.with_service(min(self.prefill.service, state.prefill_load * replicas / rate))
        decode = self.decode.with_service(self.decode.service * shorter)
        return max(share_late(replicas, rate, prefill), share_late(replicas, rate, decode))


def _queues(view: DemandView, capacity: Capacity, policy: AutopilotPolicy, since: float | None) -> _Queues:
    """Args: since: when the service was first seen; None: now."""
    assert view.replica is not None
    assert view.workload is not None
    cost, workload = view.replica.cost, view.workload
    attention = cost.prefill_context_token_s * workload.attended
    alone = cost.prefill_seconds(workload.computed)
    linear = max(0.0, alone - cost.prefill_context_token_s * workload.computed * (workload.computed + 1) / 2)
    own = linear + attention
    # The work of a prompt grows faster than its length: its variation is that of the length times the square of the
    # slope of ln(work) over ln(length) (delta method).
    steeper = attention / own if own > 0 else 0.0
    unequal = max(0.0, workload.prompt_square / max(1.0, workload.prompt) ** 2 - 1)
    ttft = capacity.aim.ttft_of(workload.prompt)
    patience = policy.recovery if ttft is None else max(ttft - own, _LEAST_PATIENCE * ttft)
    prefill = Staffing(
        service=min(1.0, capacity.state.prefill_load) / capacity.rate,
        variation=unequal * (1 + steeper) ** 2,
        patience=patience,
        pooled=view.pooled,
        ordered=view.ordered,
    )
    slots = max(_LEAST_SLOTS, min(_MOST_SLOTS, round(capacity.state.running)))
    lengths = max(0.0, workload.output_square / max(1.0, workload.output) ** 2 - 1)
    decode = replace(prefill, service=slots / capacity.rate, servers=slots, variation=lengths)
    # The demand of older pods, which an operator that restarts sees for the first time, does not begin.
    age = max(view.time - (view.time if since is None else since), view.seconds(SPAN), view.ready_for)
    young = policy.young * max(0.0, 1 - age / policy.level)
    lead = min(view.start_up, policy.farthest)
    untried = policy.untried * lead / (lead + age) * max(0.0, 1 - age / policy.remember) if lead > 0 else 0.0
    return _Queues(view.replica, workload, capacity, prefill, decode, policy, young, untried)


_MOST_REPLICAS = 10_000

_LEAST_SLOTS, _MOST_SLOTS = 4, 64
"""Servers that a replica's slots are counted as: a few requests more for a moment miss no mean over an output, and
beyond many only their mean load matters."""


_WITHIN_REACH = 0.2
"""Share of a replica's rate without targets that targets must leave. If they leave less, steps are so close to the
target that a small error of the model would order many times the replicas, and requests are not served better for
it."""

_LEAST_PATIENCE = 0.4
"""Share of the TTFT target that a mean prompt may wait at least: prompts whose own prefill takes longer cannot keep
it."""


def _waiting(view: DemandView) -> float:
    """Returns the backlog as a number of mean requests."""
    assert view.workload is not None
    return view.waiting_tokens / max(1.0, view.workload.prompt) if view.waiting_tokens else float(view.waiting)


def _rise(view: DemandView, rate: float, dispersion: float, ahead: float, policy: AutopilotPolicy) -> float:
    """Returns the requests per second that are added to `rate` in `ahead` seconds if demand continues to rise at its
    current slope."""
    points = [point for point in view.points if point.time > view.time - policy.trend]
    span = points[-1].time - points[0].time if points else 0.0
    if span < policy.trend / 2 or rate <= 0:
        return 0.0
    slope = _slope(points)
    # Of a Poisson process the least-squares slope over a time T has the variance 12 rate / T^3.
    noise = math.sqrt(12 * dispersion * rate / span**3)
    if slope <= policy.significance * noise:
        return 0.0
    return min(policy.most_trend * rate, slope * (ahead + policy.level / 2))


def _slope(points: list[DemandPoint]) -> float:
    """Returns the slope by least squares, in requests per second per second."""
    middle = sum(point.time for point in points) / len(points)
    mean = sum(point.requests for point in points) / len(points)
    across = sum((point.time - middle) * (point.requests - mean) for point in points)
    spread = sum((point.time - middle) ** 2 for point in points)
    return across / spread if spread > 0 else 0.0

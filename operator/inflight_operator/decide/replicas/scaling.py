"""Number of replicas of a service: the largest recommendation of capacity model and targets, bounded by the behaviour
rules.

The arithmetic of a target is that of `autoscaling/v2`: desired = ceil(measured / (replicas * target) * replicas), with
a tolerance of 10%. Replicas that are ordered and start as usual count as capacity that shows no load, so an order is
never repeated while it is being filled. Replicas that are blocked or late count as none. Source: Kubernetes
documentation, "Horizontal Pod Autoscaling", section "Algorithm details".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from inflight_operator.decide.decision import Decision, Number, Reason
from inflight_operator.decide.replicas.behavior import Behavior, ScalingHistory, rate_limited, recorded, stabilized
from inflight_operator.observe.metrics import Sample, mean_kv_usage

TOLERANCE = 0.1
"""A ratio of measured to target within 1 +/- this asks for no change (the default of the Horizontal Pod Autoscaler)."""


@dataclass(frozen=True, slots=True)
class ScalingObservation:
    """Inputs of the scaling decision.

    Attributes:
        time: seconds on a steady clock.
        replicas: replicas ordered from the child now.
        ready: pods that are ready and not terminating.
        loads: fresh samples, at most one for each ready pod; a ready pod without one is stale.
        ttft_p95: seconds, over the last `window`; None without finished first tokens.
        tpot_p95: seconds, over the same time; None without finished requests.
        limits_spent: whether no other limits would lower the time per token: tuning may not move them, or not lower.
        window: seconds that `ttft_p95` and `tpot_p95` look back.
        blocked: ordered replicas that will not become ready without intervention.
        cause: why they are blocked, as text; empty if none is.
        shared_cause: whether further replicas would be blocked or late for the same cause.
        late: ordered replicas that take longer to start than replicas of this service usually do.
        held: requests held at the gateway.
        slots: requests that a replica runs at once, by the limits in force; 0 if unknown.
    """

    time: float
    replicas: int
    ready: int
    loads: tuple[Sample, ...]
    ttft_p95: float | None = None
    tpot_p95: float | None = None
    limits_spent: bool = False
    window: float = 30.0
    blocked: int = 0
    cause: str = ""
    shared_cause: bool = False
    late: int = 0
    held: int = 0
    slots: int = 0

    @property
    def stale(self) -> int:
        """Ready pods whose metrics are missing or old."""
        return max(0, self.ready - len(self.loads))

    @property
    def uncredited(self) -> int:
        """Ordered replicas that are no capacity, now or soon."""
        return min(self.blocked + self.late, max(0, self.replicas - self.ready))

    @property
    def credited(self) -> int:
        """Ordered replicas that are capacity, now or soon."""
        return self.replicas - self.uncredited

    @property
    def starting(self) -> int:
        """Replicas ordered that are not ready yet and will be soon: not created, pending or loading."""
        return max(0, self.credited - self.ready)

    @property
    def waiting(self) -> int:
        return self.held + sum(load.waiting for load in self.loads)

    @property
    def working(self) -> int:
        """Requests that run or wait."""
        return self.waiting + sum(load.running for load in self.loads)


@dataclass(frozen=True, slots=True)
class ScalingTargets:
    """Scaling targets; None disables a target.

    Attributes:
        waiting_requests: requests that may wait, per replica.
        kv_utilization: share of KV blocks in use, 0 to 1, mean over replicas.
        concurrency: requests that run or wait, per replica.
        ttft_p95: seconds; if exceeded while requests wait, one replica is added.
        tpot_p95: seconds; if exceeded and tuning cannot lower it, one replica is added.
    """

    waiting_requests: float | None = None
    kv_utilization: float | None = None
    concurrency: float | None = None
    ttft_p95: float | None = None
    tpot_p95: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingBounds:
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Attributes:
    replicas: desired number.
    change: None when replicas stay.
    code: CamelCase; the reason of a condition.
    reason: reason of the change, or why nothing changes.
    able: False if the measurements did not suffice for a decision.
    history: passed to the next decision.
    """

    replicas: int
    change: Decision | None
    code: str
    reason: Reason
    able: bool
    history: ScalingHistory


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Recommendation: credited replicas, and the reason."""

    replicas: int
    reason: Reason


def decide_scaling(
    observation: ScalingObservation,
    targets: ScalingTargets,
    behavior: Behavior,
    bounds: ScalingBounds,
    history: ScalingHistory,
    capacity: Recommendation | None = None,
) -> ScalingDecision:
    """The replicas a service should have now, with the reason; pass the returned history to the next call.

    Args:
        capacity: recommendation of the capacity model; None without one.
    """
    now, current = observation.time, observation.replicas
    history = history.at(now, current, starting=observation.starting)
    if not bounds.min_replicas <= current <= bounds.max_replicas:
        return _into_bounds(current, behavior, bounds, history, now)

    recommendations = _recommendations(observation, targets, history, capacity)
    if not recommendations:
        # Unmeasured load counts as needed, so that the scale-down window does not expire without measurements.
        history = recorded(history, now, wanted=current, before=current, after=current, behavior=behavior)
        reason = _nothing_to_go_by(observation, targets)
        return ScalingDecision(current, None, reason.code, reason, False, history)
    best = _ordered(observation, max(recommendations, key=lambda one: one.replicas))
    if observation.stale and best.replicas < current + (not observation.loads):
        numbers = {"stale": observation.stale, "ready": observation.ready}
        best = Recommendation(current, Reason("MetricsMissing", numbers))
    wanted = min(max(best.replicas, bounds.min_replicas), bounds.max_replicas)

    steady = stabilized(wanted, current, behavior, history, now)
    allowed = rate_limited(steady.replicas, current, behavior, history, now)
    history = recorded(history, now, wanted=wanted, before=current, after=allowed.replicas, behavior=behavior)
    able, held, bound = not observation.stale, allowed.held or steady.held, _bound(best, bounds)
    if allowed.replicas != current:
        return _changed(current, allowed.replicas, _holding(_holding(best.reason, bound), held), able, history)
    return ScalingDecision(current, None, *_why_unchanged(best, wanted, current, bound, held), able, history)


def _recommendations(
    observation: ScalingObservation, targets: ScalingTargets, history: ScalingHistory, capacity: Recommendation | None
) -> list[Recommendation]:
    """Returns all recommendations. Of equal ones, the reason of the first is reported."""
    recommendations = [] if capacity is None else [capacity]
    if not observation.loads:
        return recommendations or _by_held(observation)
    if targets.waiting_requests is not None:
        recommendations.append(_by_waiting(observation, targets.waiting_requests))
    if targets.kv_utilization is not None and (kv := mean_kv_usage(observation.loads)) is not None:
        recommendations.append(_by_kv(observation, kv, targets.kv_utilization))
    if targets.concurrency is not None:
        recommendations.append(_by_concurrency(observation, targets.concurrency))
    if targets.ttft_p95 is not None:
        recommendations.append(_by_ttft(observation, targets.ttft_p95, history))
    if targets.tpot_p95 is not None:
        recommendations.append(_by_tpot(observation, targets.tpot_p95, history))
    return recommendations


def _by_held(observation: ScalingObservation) -> list[Recommendation]:
    """Returns the recommendation of requests that wait at the gateway while no replica is measured: those that are
    ready count as full, and the held requests need slots of further ones. None while all replicas still start."""
    full = observation.ready * observation.slots
    if not full or observation.held / full <= TOLERANCE:
        return []
    wanted = observation.ready + math.ceil(observation.held / observation.slots)
    numbers = {"held": observation.held, "ready": observation.ready, "slots": observation.slots}
    return [Recommendation(max(wanted, observation.credited), Reason("HeldUnmeasured", numbers))]


def _ordered(observation: ScalingObservation, best: Recommendation) -> Recommendation:
    """Returns the replicas to order for a number of credited ones. Blocked and late replicas are added when more are
    wanted, left alone when not, and removed first when fewer are wanted (Kubernetes deletes pods that are not ready
    first)."""
    if observation.uncredited:
        more = best.replicas > observation.credited and observation.shared_cause
        wanted = best.replicas + observation.uncredited
        best = Recommendation(best.replicas, _holding(best.reason, _missing(observation, wanted if more else None)))
        if more:
            return Recommendation(observation.replicas, best.reason)
    if best.replicas > observation.credited:
        return Recommendation(best.replicas + observation.uncredited, best.reason)
    return Recommendation(observation.replicas, best.reason) if best.replicas == observation.credited else best


def _missing(observation: ScalingObservation, wanted: int | None) -> Reason:
    """The effect of replicas without credit on the decision.

    Args:
        wanted: replicas that would be ordered, if further ones were any use; else None.
    """
    if not observation.blocked:
        held = None if wanted is None else Reason("NoMoreWhileLate", {"wanted": wanted})
        return Reason("StartingLate", {"late": observation.late}, held)
    numbers: dict[str, Number] = {
        "blocked": observation.blocked,
        "replicas": observation.replicas,
        "cause": observation.cause,
    }
    return Reason("Blocked", numbers) if wanted is None else Reason("BlockedNoMore", {**numbers, "wanted": wanted})


def _by_ratio(observation: ScalingObservation, measured: float, target: float) -> int:
    """Credited replicas for `measured`, summed over pods, at `target` each; pods that do not show load count as
    unloaded when scaling up and, for those that are stale, as exactly at target when scaling down."""
    shown = len(observation.loads)
    everyone = max(observation.credited, observation.ready)
    if measured / (shown * target) > 1.0:
        ratio = measured / (everyone * target)
        return observation.credited if ratio <= 1.0 + TOLERANCE else math.ceil(_rounded(measured / target))
    measured += observation.stale * target
    ratio = measured / (observation.ready * target)
    if ratio >= 1.0 - TOLERANCE:
        return observation.credited
    return min(observation.credited, math.ceil(_rounded(measured / target)))


def _rounded(value: float) -> float:
    """Removes rounding errors, so that 3.0000000000000004 replicas are 3."""
    return round(value, 9)


def _by_waiting(observation: ScalingObservation, target: float) -> Recommendation:
    # A replica that starts will take the head of the queue: what its slots hold is not asked for a second time. Until
    # it has, the queue is the reason why it was ordered: the order stands as long as the queue does.
    ordered = observation.starting * (_slots(observation) or 0)
    measured = max(0, observation.waiting - ordered)
    standing = min(_by_ratio(observation, observation.waiting, target), observation.credited)
    wanted = max(_by_ratio(observation, measured, target), standing, _fits(observation))
    if observation.waiting == 0 and wanted < observation.credited:
        return Recommendation(wanted, Reason("NoRequestsWait", {"target": target}))
    return Recommendation(wanted, Reason("WaitingRequests", {"waiting": observation.waiting, "target": target}))


def _fits(observation: ScalingObservation) -> int:
    """The fewest replicas, never more than there are, whose slots hold all that runs and waits: an empty queue alone
    does not mean that a replica can go."""
    slots = _slots(observation)
    if slots is None:
        return 0
    return min(observation.credited, math.ceil(observation.working / slots))


def _slots(observation: ScalingObservation) -> int | None:
    """Requests that one replica runs at once: the mean over engines that report it, so that one pod with few slots does
    not limit the estimate for the fleet; if none does, as many as it was started with. None if that is unknown."""
    reported = [load.max_num_seqs for load in observation.loads if load.max_num_seqs]
    return max(1, sum(reported) // len(reported)) if reported else observation.slots or None


def _by_kv(observation: ScalingObservation, measured: float, target: float) -> Recommendation:
    wanted = _by_ratio(observation, measured * len(observation.loads), target)
    return Recommendation(wanted, Reason("KvUtilization", {"kv": measured, "target": target}))


def _by_concurrency(observation: ScalingObservation, target: float) -> Recommendation:
    total = observation.working
    numbers = {"concurrency": total / len(observation.loads), "target": target}
    return Recommendation(_by_ratio(observation, total, target), Reason("Concurrency", numbers))


def _by_ttft(observation: ScalingObservation, target: float, history: ScalingHistory) -> Recommendation:
    measured = observation.ttft_p95
    if measured is None or measured <= target or observation.waiting == 0:
        return Recommendation(0, Reason("TtftWithinTarget", {"ttft_target": target}))
    numbers = {"ttft": measured, "ttft_target": target, "waiting": observation.waiting}
    return _one_more(observation, Reason("TtftOverTarget", numbers), history)


def _by_tpot(observation: ScalingObservation, target: float, history: ScalingHistory) -> Recommendation:
    """Limits are the lever for the time per token. Where they are spent, fewer requests in each engine are left, as
    long as engines run more than one."""
    measured = observation.tpot_p95
    running = sum(load.running for load in observation.loads)
    out_of_target = measured is not None and measured > target * (1 + TOLERANCE)
    if measured is None or not out_of_target or not observation.limits_spent or running <= len(observation.loads):
        return Recommendation(0, Reason("TpotWithinTarget", {"tpot_target": target}))
    return _one_more(observation, Reason("TpotBeyondLimits", {"tpot": measured, "tpot_target": target}), history)


def _one_more(observation: ScalingObservation, why: Reason, history: ScalingHistory) -> Recommendation:
    """Returns one more replica, but none until a whole window was measured with all ordered replicas in place."""
    if observation.starting or observation.time - history.complete_since < observation.window:
        return Recommendation(observation.credited, replace(why, held=Reason("Settling")))
    return Recommendation(observation.credited + 1, why)


def _into_bounds(
    current: int, behavior: Behavior, bounds: ScalingBounds, history: ScalingHistory, now: float
) -> ScalingDecision:
    if current < bounds.min_replicas:
        to, code = bounds.min_replicas, "BelowMinReplicas"
    else:
        to, code = bounds.max_replicas, "AboveMaxReplicas"
    history = recorded(history, now, wanted=to, before=current, after=to, behavior=behavior)
    return _changed(current, to, Reason(code, {"bound": to}), True, history)


def _nothing_to_go_by(observation: ScalingObservation, targets: ScalingTargets) -> Reason:
    if targets == ScalingTargets():
        return Reason("NoTargets")
    if observation.ready == 0:
        return Reason("NoReadyPods")
    if observation.loads:
        return Reason("KvNotReported")
    return Reason("MetricsMissing", {"stale": observation.ready, "ready": observation.ready})


def _bound(best: Recommendation, bounds: ScalingBounds) -> Reason | None:
    """Returns the bound that keeps the replicas from what is recommended; None if they are within the bounds."""
    if best.replicas > bounds.max_replicas:
        return Reason("MaxReplicas", {"bound": bounds.max_replicas})
    return Reason("MinReplicas", {"bound": bounds.min_replicas}) if best.replicas < bounds.min_replicas else None


def _why_unchanged(
    best: Recommendation, wanted: int, current: int, bound: Reason | None, held: Reason | None
) -> tuple[str, Reason]:
    if wanted < current:
        return "ScaleDownHeld", _holding(best.reason, held)
    if wanted > current:
        return "ScaleUpHeld", _holding(best.reason, held)
    if bound is not None:
        return bound.code, _holding(best.reason, bound)
    if best.reason.code in ("MetricsMissing", "TtftOverTarget", "TpotBeyondLimits"):
        return best.reason.code, best.reason
    if best.reason.held is not None:
        return best.reason.held.code, best.reason
    return "AsDesired", _holding(best.reason, Reason("AsDesired", {"replicas": current}))


def _changed(frm: int, to: int, reason: Reason, able: bool, history: ScalingHistory) -> ScalingDecision:
    return ScalingDecision(to, Decision("Scaling", "replicas", frm, to, reason), reason.code, reason, able, history)


def _holding(reason: Reason, held: Reason | None) -> Reason:
    """`reason` with one more entry at the end of `held`."""
    if held is None:
        return reason
    return replace(reason, held=held if reason.held is None else _holding(reason.held, held))

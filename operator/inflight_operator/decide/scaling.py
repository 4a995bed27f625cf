"""How many replicas a service needs: each target asks for a number, the largest wins, behaviour rules bound the change.

The arithmetic of a target is that of `autoscaling/v2`: desired = ceil(measured / (replicas * target) * replicas), with
a tolerance of 10%. Replicas that are ordered but not ready yet count as capacity that shows no load, so an order is
never repeated while it is being filled. Source: Kubernetes documentation, "Horizontal Pod Autoscaling", section
"Algorithm details".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight_operator.decide.behavior import Behavior, ScalingHistory, rate_limited, recorded, stabilized

TOLERANCE = 0.1
"""A ratio of measured to target within 1 +/- this asks for no change (the default of the Horizontal Pod Autoscaler)."""


@dataclass(frozen=True, slots=True)
class PodLoad:
    """What one ready pod showed lately.

    Attributes:
        waiting: requests in its queue.
        running: requests that hold a slot.
        kv_usage: share of its KV blocks in use, 0 to 1.
        max_num_seqs: its live slot limit; None when the engine does not tell.
    """

    waiting: int
    running: int
    kv_usage: float
    max_num_seqs: int | None = None


@dataclass(frozen=True, slots=True)
class ScalingObservation:
    """What the scaling decision sees.

    Attributes:
        time: seconds on a steady clock.
        replicas: replicas ordered from the child now.
        ready: pods that are ready and not terminating.
        loads: fresh measurements, at most one for each ready pod; a ready pod without one is stale.
        ttft_p95: seconds, over the last `window`; None without finished first tokens.
        window: seconds that `ttft_p95` looks back.
    """

    time: float
    replicas: int
    ready: int
    loads: tuple[PodLoad, ...]
    ttft_p95: float | None = None
    window: float = 30.0

    @property
    def stale(self) -> int:
        """Ready pods whose metrics are missing or old."""
        return max(0, self.ready - len(self.loads))

    @property
    def starting(self) -> int:
        """Replicas ordered that are not ready yet: not created, pending or loading."""
        return max(0, self.replicas - self.ready)

    @property
    def waiting(self) -> int:
        return sum(load.waiting for load in self.loads)


@dataclass(frozen=True, slots=True)
class ScalingTargets:
    """What to hold; a target that is None asks for nothing.

    Attributes:
        waiting_requests: requests that may wait, per replica.
        kv_utilization: share of KV blocks in use, 0 to 1, mean over replicas.
        ttft_p95: seconds; over it while requests wait asks for one replica more.
    """

    waiting_requests: float | None = None
    kv_utilization: float | None = None
    ttft_p95: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingBounds:
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Attributes:
    replicas: what the service should have now.
    code: CamelCase reason for a condition.
    reason: one sentence; it says "replicas A -> B" when the number changes.
    able: False when the measurements were not enough to decide on.
    history: to be given to the next decision.
    """

    replicas: int
    code: str
    reason: str
    able: bool
    history: ScalingHistory


@dataclass(frozen=True, slots=True)
class _Ask:
    """One target's answer: the replicas it wants, and the sentence that says why."""

    replicas: int
    code: str
    why: str


def decide_scaling(
    observation: ScalingObservation,
    targets: ScalingTargets,
    behavior: Behavior,
    bounds: ScalingBounds,
    history: ScalingHistory,
) -> ScalingDecision:
    """The replicas a service should have now, with the reason; pass the returned history to the next call."""
    now, current = observation.time, observation.replicas
    history = history.at(now, current, starting=observation.starting)
    if not bounds.min_replicas <= current <= bounds.max_replicas:
        return _into_bounds(current, bounds, history, now)

    asks = _asks(observation, targets, history)
    if not asks:
        # What cannot be measured counts as needed: the scale-down window does not run out unseen.
        history = recorded(history, now, wanted=current, before=current, after=current, behavior=behavior)
        return ScalingDecision(current, *_nothing_to_go_by(observation, targets), False, history)
    ask = max(asks, key=lambda one: one.replicas)
    if observation.stale and ask.replicas < current:
        ask = _Ask(
            current,
            "MetricsMissing",
            f"{observation.stale} of {observation.ready} ready pods show no fresh metrics: not scaling down",
        )
    wanted = min(max(ask.replicas, bounds.min_replicas), bounds.max_replicas)

    steady = stabilized(wanted, current, behavior, history, now)
    allowed = rate_limited(steady.replicas, current, behavior, history, now)
    history = recorded(history, now, wanted=wanted, before=current, after=allowed.replicas, behavior=behavior)
    able = not observation.stale
    if allowed.replicas != current:
        held = allowed.why or steady.why
        why = f"replicas {current} -> {allowed.replicas}: {ask.why}" + (f"; {held}" if held else "")
        return ScalingDecision(allowed.replicas, ask.code, why, able, history)
    code, why = _why_unchanged(ask, wanted, current, bounds, steady.why, allowed.why)
    return ScalingDecision(current, code, why, able, history)


def _asks(observation: ScalingObservation, targets: ScalingTargets, history: ScalingHistory) -> list[_Ask]:
    if not observation.loads:
        return []
    asks = []
    if targets.waiting_requests is not None:
        asks.append(_waiting_ask(observation, targets.waiting_requests))
    if targets.kv_utilization is not None:
        asks.append(_kv_ask(observation, targets.kv_utilization))
    if targets.ttft_p95 is not None:
        asks.append(_ttft_ask(observation, targets.ttft_p95, history))
    return asks


def _by_ratio(observation: ScalingObservation, measured: float, target: float) -> int:
    """Replicas for `measured`, summed over pods, at `target` each; pods that do not show load count as unloaded when
    scaling up and, for those that are stale, as exactly at target when scaling down."""
    shown = len(observation.loads)
    everyone = max(observation.replicas, observation.ready)
    if measured / (shown * target) > 1.0:
        ratio = measured / (everyone * target)
        return observation.replicas if ratio <= 1.0 + TOLERANCE else math.ceil(_rounded(measured / target))
    measured += observation.stale * target
    ratio = measured / (observation.ready * target)
    if ratio >= 1.0 - TOLERANCE:
        return observation.replicas
    return min(observation.replicas, math.ceil(_rounded(measured / target)))


def _rounded(value: float) -> float:
    """Takes away float dust, so that 3.0000000000000004 replicas are 3."""
    return round(value, 9)


def _waiting_ask(observation: ScalingObservation, target: float) -> _Ask:
    # A replica that starts will take the head of the queue: what its slots hold is not asked for a second time. Until
    # it has, the queue is the reason why it was ordered: the order stands as long as the queue does.
    ordered = observation.starting * (_slots(observation) or 0)
    measured = max(0, observation.waiting - ordered)
    standing = min(_by_ratio(observation, observation.waiting, target), observation.replicas)
    wanted = max(_by_ratio(observation, measured, target), standing, _fits(observation))
    per_replica = f"{target:g} per replica is the target"
    if observation.waiting == 0 and wanted < observation.replicas:
        return _Ask(wanted, "NoRequestsWait", f"no request waits, {per_replica}")
    return _Ask(
        wanted,
        "WaitingRequests",
        f"{_count(observation.waiting, 'request')} {_verb(observation.waiting)}, {per_replica}",
    )


def _fits(observation: ScalingObservation) -> int:
    """The fewest replicas, never more than there are, whose slots hold all that runs and waits: an empty queue alone
    does not mean that a replica can go."""
    slots = _slots(observation)
    if slots is None:
        return 0
    work = sum(load.running + load.waiting for load in observation.loads)
    return min(observation.replicas, math.ceil(work / slots))


def _slots(observation: ScalingObservation) -> int | None:
    """Requests that one replica runs at once; None when no engine tells."""
    return min((load.max_num_seqs for load in observation.loads if load.max_num_seqs), default=None)


def _kv_ask(observation: ScalingObservation, target: float) -> _Ask:
    total = sum(load.kv_usage for load in observation.loads)
    mean = total / len(observation.loads)
    why = f"{mean:.0%} of the KV cache is in use, {target:.0%} is the target"
    return _Ask(_by_ratio(observation, total, target), "KvUtilization", why)


def _ttft_ask(observation: ScalingObservation, target: float, history: ScalingHistory) -> _Ask:
    measured = observation.ttft_p95
    if measured is None or measured <= target or observation.waiting == 0:
        return _Ask(0, "TtftWithinTarget", f"p95 TTFT holds the target {_seconds(target)}")
    waits = f"{_count(observation.waiting, 'request')} {_verb(observation.waiting)}"
    why = f"p95 TTFT {_seconds(measured)} over target {_seconds(target)} while {waits}"
    # One step, and then none until a whole window was measured with all that was ordered in place.
    if observation.starting or observation.time - history.complete_since < observation.window:
        return _Ask(observation.replicas, "TtftOverTarget", f"{why}; waiting to see what the last change brings")
    return _Ask(observation.replicas + 1, "TtftOverTarget", why)


def _into_bounds(current: int, bounds: ScalingBounds, history: ScalingHistory, now: float) -> ScalingDecision:
    if current < bounds.min_replicas:
        to, code, name = bounds.min_replicas, "BelowMinReplicas", "minReplicas"
    else:
        to, code, name = bounds.max_replicas, "AboveMaxReplicas", "maxReplicas"
    why = f"replicas {current} -> {to}: {name} is {to}"
    return ScalingDecision(to, code, why, True, history.with_event(now, to - current))


def _nothing_to_go_by(observation: ScalingObservation, targets: ScalingTargets) -> tuple[str, str]:
    if targets == ScalingTargets():
        return "NoTargets", "no scaling target is set: replicas stay as they are"
    if observation.ready == 0:
        return "NoReadyPods", "no pod is ready yet: replicas stay as they are"
    return (
        "MetricsMissing",
        f"none of {_count(observation.ready, 'ready pod')} shows fresh metrics: replicas stay as they are",
    )


def _why_unchanged(
    ask: _Ask, wanted: int, current: int, bounds: ScalingBounds, stabilizer: str, limiter: str
) -> tuple[str, str]:
    if wanted < current:
        return ("ScaleDownHeld", f"{ask.why}; {stabilizer or limiter}")
    if wanted > current:
        return ("ScaleUpHeld", f"{ask.why}; {stabilizer or limiter}")
    if ask.replicas > bounds.max_replicas:
        return ("MaxReplicas", f"{ask.why}; maxReplicas {bounds.max_replicas} is reached")
    if ask.replicas < bounds.min_replicas:
        return ("MinReplicas", f"{ask.why}; minReplicas is {bounds.min_replicas}")
    if ask.code in ("MetricsMissing", "TtftOverTarget"):
        return (ask.code, ask.why)
    return ("AsDesired", f"{ask.why}: {_count(current, 'replica')} {'is' if current == 1 else 'are'} right")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _verb(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"

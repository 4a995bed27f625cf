"""Limits for a snapshot: by hand, or by tuning; which engines they are for and which run with them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inflight_operator.decide.decision import Decision
from inflight_operator.decide.override import decide_override
from inflight_operator.decide.tuning.model import end_canary, modelled_limits
from inflight_operator.decide.tuning.tune import TuningMode, decide_tuning
from inflight_operator.decide.tuning.types import TuningState
from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import PodView
from inflight_operator.reconcile.memory import CanaryInForce, Memory
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.reconcile.views import bounds_of_tuning, limits_bounds, mean_slo, tuning_model, tuning_view
from inflight_settings.limits import Limits, LimitsInForce

_TUNING = ("spec.tuning", "spec.slo")
"""Fields that make tuning only recommend while they are unreadable."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Memory with the limits to be in force, and the changes that led to them."""

    memory: Memory
    changes: tuple[Decision, ...] = ()


def limits_by_hand(snapshot: Snapshot, memory: Memory) -> Tuned:
    """Begins, changes and ends limits set by hand, before all that depends on the limits in force. An override ends a
    canary."""
    limits, before = memory.limits.limits, memory.before_override
    decision = decide_override(snapshot.policy.override, snapshot.at, limits, before, snapshot.policy.capacity)
    if (decision.limits, decision.before) == (limits, before):
        return Tuned(memory)
    state = replace(memory.tuning, trial=None, move=None, window_start=snapshot.now)
    memory = replace(
        _with_revisions(memory, decision.limits, state), before_override=decision.before, tuning_reason=None
    )
    return Tuned(memory, decision.changes)


def best_limits(snapshot: Snapshot, memory: Memory) -> Limits | None:
    """Returns the best limits by the cost model: from tuning's last use of it, or computed now if tuning does not use
    it."""
    policy = snapshot.policy
    if policy.tuning is not TuningMode.OFF and memory.before_override is None:
        return memory.tuning.modelled
    model = tuning_model(snapshot, memory.demand)
    if model is None or not snapshot.fresh:
        return None
    return modelled_limits(bounds_of_tuning(policy), mean_slo(policy, memory.demand), model, memory.tuning)


def tuned_limits(snapshot: Snapshot, memory: Memory) -> Tuned:
    """Returns the limits by tuning. They are unchanged under an override and while no ready engine reports its limits,
    except that a canary ends then."""
    if memory.before_override is not None:
        return Tuned(memory)
    tunable = {pod.uid: pod.name for pod in _measured_pods(snapshot)}
    state = memory.tuning
    if not tunable:
        if memory.canary is None:
            return Tuned(memory)
        ended = end_canary(memory.limits.limits, state, snapshot.now)
        return Tuned(_with_revisions(memory, ended.limits, ended.state), ended.changes)
    mode = snapshot.policy.tuning
    if any(field.startswith(_TUNING) for field in snapshot.unread):
        mode = TuningMode.RECOMMEND
    slo, model = mean_slo(snapshot.policy, memory.demand), tuning_model(snapshot, memory.demand)
    decision = decide_tuning(
        mode,
        tuning_view(snapshot.window, state.window_start, snapshot.now, slo, tunable),
        memory.limits.limits,
        limits_bounds(snapshot.policy),
        slo,
        model,
        state,
        snapshot.tuning,
    )
    if decision.reason.code != "Measuring" or memory.tuning_reason is None:
        memory = replace(memory, tuning_reason=decision.reason)
    return Tuned(_with_revisions(memory, decision.limits, decision.state), decision.changes)


def _with_revisions(memory: Memory, wanted: Limits, state: TuningState) -> Memory:
    """Returns the memory with new limits and their revisions. Changed limits of the service or its canary get the next
    revision; so do the limits of all pods when a canary ends, as it would reject an older revision."""
    limits, revision, was, now = memory.limits, memory.revision, memory.canary, state.canary
    begun = now is not None and (was is None or (was.uid, was.in_force.limits) != (now.uid, now.limits))
    canary = was if now is not None else None
    if wanted != limits.limits or (was is not None and now is None):
        revision += 1
        limits = LimitsInForce(wanted, revision)
    if now is not None and begun:
        canary = CanaryInForce(now.uid, now.name, LimitsInForce(now.limits, revision + 1))
    return replace(memory, limits=limits, canary=canary, tuning=state)


def _measured_pods(snapshot: Snapshot) -> list[PodView]:
    """Returns the pods whose measurements are those of the limits in force: tunable ones, or all where limits never
    change."""
    if snapshot.policy.engine_type.live_limits:
        return tunable_pods(snapshot)
    return pods_of_type(snapshot)


def pods_of_type(snapshot: Snapshot) -> list[PodView]:
    """Returns the measured pods whose engine is of the service's type. The others are of an earlier type: they leave
    with their own limits."""
    kind = snapshot.policy.engine_type.kind
    return [pod for pod in snapshot.pods if pod.uid in snapshot.fresh and pod.engine.kind == kind]


def tunable_pods(snapshot: Snapshot) -> list[PodView]:
    """Returns the ready pods that report their limits and accept changes."""
    return [
        pod
        for pod in pods_of_type(snapshot)
        if pod.admin_port is not None and snapshot.fresh[pod.uid].limits is not None
    ]


def limit_targets(snapshot: Snapshot, memory: Memory) -> tuple[tuple[PodView, LimitsInForce], ...]:
    """Returns the tunable pods, each with the limits that it should run with: at most its own capacity."""
    canary = memory.canary
    return tuple(
        (pod, _bounded(canary.in_force if canary and canary.uid == pod.uid else memory.limits, snapshot.fresh[pod.uid]))
        for pod in tunable_pods(snapshot)
    )


def _bounded(limits: LimitsInForce, sample: Sample) -> LimitsInForce:
    if sample.capacity is None:
        return limits
    bounded = limits.limits.at_most(sample.capacity)
    return limits if bounded == limits.limits else replace(limits, limits=bounded)


def is_in_force(snapshot: Snapshot, uid: str, limits: LimitsInForce) -> bool:
    """Returns True if this engine runs with its limits: it reports them, or accepted them after its last sample."""
    sample, push = snapshot.fresh[uid], snapshot.pushes.get(uid)
    if push is not None and push.accepted == limits and push.at >= sample.time:
        return True
    return (sample.limits, sample.revision) == (limits.limits, limits.revision)

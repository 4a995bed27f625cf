"""Scale to zero, and scale up from zero.

A service becomes idle (zero replicas) after `idle_timeout` without a request. That is the stabilization window of this
step, so the window of `behavior.scaleDown` is not added; its policies bound the step as any other. To miss no request,
every gateway pod must be connected and every engine measured. A service keeps its replicas while limits by hand are in
force, during a rollout and during an engine upgrade: their outcome shows only on running pods. A starting replica is
never removed: if waking took longer than a client waits, the service would never become ready.

The first held request wakes it, with as many replicas as the held work needs by the cost model. While they start,
further held requests can raise that number. Policies of `behavior.scaleUp` bound it, except for the first replica.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from inflight_cost.capacity import Replica, Targets, Workload
from inflight_operator.decide.decision import Decision, Number, Reason
from inflight_operator.decide.replicas.autopilot import AutopilotPolicy, capacity_within
from inflight_operator.decide.replicas.behavior import Behavior, ScalingHistory, rate_limited, recorded
from inflight_operator.decide.replicas.scaling import ScalingDecision
from inflight_operator.observe.gateway_view import GatewayView
from inflight_settings.limits import LimitsBounds

Busy = Literal["", "Overridden", "RollingOut", "EngineUpgrade", "SpecNotUnderstood"]
"""Reasons besides requests that keep a service awake."""


@dataclass(frozen=True, slots=True)
class SleepView:
    """State of a service that may scale to zero.

    Attributes:
        time: steady clock, seconds.
        replicas: ordered now.
        ready: pods that take requests.
        ready_for: seconds since the first of them became ready; 0 without ready pods.
        stale: ready pods without recent metrics.
        working: requests that run or wait in engines.
        troubled: ordered replicas that are blocked or late.
        gateway: state that its pods report.
        idle_timeout: seconds without a request after which the service sleeps.
        max_replicas: bound of the spec.
        busy: reasons besides requests that keep the service awake.
    """

    time: float
    replicas: int
    ready: int
    ready_for: float
    stale: int
    working: int
    troubled: int
    gateway: GatewayView
    idle_timeout: float
    max_replicas: int
    busy: Busy = ""


@dataclass(frozen=True, slots=True)
class HeldWork:
    """Inputs that size the replicas for held requests.

    Attributes:
        replica, workload: inputs of the cost model, as in `DemandView`; None while unknown.
        targets: latencies to keep.
        limits: bounds in which tuning may move the limits.
        unit: prompt tokens of engines for one that the gateway estimates.
        tighten: share of the TPOT target that tuning solves for.
    """

    replica: Replica | None
    workload: Workload | None
    targets: Targets
    limits: LimitsBounds
    unit: float = 1.0
    tighten: float = 1.0


def decide_sleep(
    view: SleepView, work: HeldWork, behavior: Behavior, history: ScalingHistory
) -> tuple[ScalingDecision | None, Reason]:
    """Returns the decision to scale to zero or from zero, None if demand decides; and why the service is idle or
    not."""
    why = _why(view)
    if view.replicas == 0 or (view.ready == 0 and view.gateway.held and not view.troubled):
        return _waking(view, work, behavior, history, why)
    if why.code != "Idle":
        return None, why
    now, current = view.time, view.replicas
    history = history.at(now, current, starting=0)
    allowed = rate_limited(0, current, behavior, history, now)
    history = recorded(history, now, wanted=0, before=current, after=allowed.replicas, behavior=behavior)
    reason = Reason(why.code, why.numbers, allowed.held)
    return _decision(current, allowed.replicas, reason, history), reason


def replicas_for(held: int, tokens: int, work: HeldWork, policy: AutopilotPolicy | None = None) -> int:
    """Replicas that start all held requests within the recovery time of a backlog; at least 1. Before the cost model is
    known, one slot for each held request.

    Args:
        tokens: estimated prompt tokens of the held requests.
    """
    policy = policy or AutopilotPolicy()
    if work.replica is None or work.workload is None:
        return max(1, math.ceil(held / work.limits.high.max_num_seqs))
    capacity = capacity_within(work.replica, work.workload, work.targets, work.limits, policy.margins, work.tighten)
    requests = tokens * work.unit / max(1.0, work.workload.prompt) if tokens else float(held)
    return max(1, math.ceil(requests / (capacity.rate * policy.recovery)))


def _waking(
    view: SleepView, work: HeldWork, behavior: Behavior, history: ScalingHistory, why: Reason
) -> tuple[ScalingDecision, Reason]:
    now, current, gateway = view.time, view.replicas, view.gateway
    history = history.at(now, current, starting=current)
    if not gateway.held:
        return _decision(current, current, why, history), why
    wanted = min(view.max_replicas, max(current, replicas_for(gateway.held, gateway.held_prompt_tokens, work)))
    allowed = rate_limited(wanted, current, behavior, history, now)
    to = max(1, allowed.replicas)
    history = recorded(history, now, wanted=wanted, before=current, after=to, behavior=behavior)
    numbers: dict[str, Number] = {"held": gateway.held, "tokens": gateway.held_prompt_tokens, "replicas": to}
    reason = Reason("Waking", numbers, allowed.held if to < wanted else None)
    return _decision(current, to, reason, history), reason


def _decision(frm: int, to: int, reason: Reason, history: ScalingHistory) -> ScalingDecision:
    change = Decision("Scaling", "replicas", frm, to, reason) if frm != to else None
    return ScalingDecision(to, change, reason.code, reason, True, history)


def _why(view: SleepView) -> Reason:
    """Returns the reason why the service is idle (code Idle), or why it is not."""
    gateway = view.gateway
    if view.replicas == 0:
        return Reason("Idle", {"timeout": view.idle_timeout})
    if gateway.held or gateway.in_flight:
        return Reason("InUse", {"held": gateway.held, "in_flight": gateway.in_flight})
    if not gateway.known:
        return Reason("GatewayNotHeard", {"said": gateway.silence})
    if view.busy:
        return Reason("AwakeDuring", {"what": view.busy})
    if view.ready == 0:
        return Reason("NoReadyPods")
    if view.stale:
        return Reason("MetricsMissing", {"stale": view.stale, "ready": view.ready})
    if view.working:
        return Reason("EnginesBusy", {"requests": view.working})
    left = view.idle_timeout - min(gateway.idle_s, view.ready_for)
    if left > 0:
        return Reason("LatelyUsed", {"timeout": view.idle_timeout, "seconds": math.ceil(left)})
    return Reason("Idle", {"timeout": view.idle_timeout})

"""Number of replicas for a snapshot: from demand and targets, or scale to zero, within the bounds of the spec. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inflight_operator.decide.decision import Reason
from inflight_operator.decide.replicas.autopilot import Sizing, decide_replicas, unsized_demand
from inflight_operator.decide.replicas.scaling import (
    Recommendation,
    ScalingDecision,
    ScalingObservation,
    decide_scaling,
)
from inflight_operator.decide.replicas.sleeping import Busy, HeldWork, SleepView, decide_sleep
from inflight_operator.decide.status.conditions import DeploymentView
from inflight_operator.decide.status.pods import Pods, count_replicas
from inflight_operator.decide.tuning.model import tpot_share
from inflight_operator.decide.tuning.tune import TuningMode
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.snapshot import Snapshot, deployment_view
from inflight_operator.reconcile.views import (
    Measured,
    demand_view,
    limits_bounds,
    longest_ready,
    mean_slo,
    scaling_observation,
    tuning_model,
    with_demand,
)
from inflight_settings.limits import LimitsBounds

_SCALING = ("spec.scaling", "spec.replicas", "spec.gateway")
"""Fields that block the removal of replicas while they are unreadable."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """Replicas to be ordered, and the inputs of the decision.

    Attributes:
        decision: decision of the operator; only a recommendation in mode External.
        memory: memory with `replicas` to be ordered.
        blocked: replicas that will not become ready without intervention.
        sizing: demand against the capacity of a replica; None without a cost model.
        sleep: reason why the service is idle or not; None for one that never scales to zero.
    """

    decision: ScalingDecision
    memory: Memory
    blocked: int
    sizing: Sizing | None
    sleep: Reason | None


def scale(snapshot: Snapshot, memory: Memory, pods: Pods, measurements: Measured) -> Scaled:
    """Returns the replicas of this round."""
    policy = snapshot.policy
    ordered = memory.replicas
    if policy.external and policy.replicas is not None:
        ordered = policy.replicas
    deployment = deployment_view(snapshot.deployment, ordered)
    replicas = count_replicas(pods, ordered, deployment.refused if deployment is not None else "")
    observation = scaling_observation(
        snapshot, replicas, ordered, measurements, memory.limits.limits, fixed=memory.before_override is not None
    )
    memory = replace(memory, demand=with_demand(snapshot, memory.demand))
    decision, sleep = _sleep(snapshot, memory, pods, observation, deployment)
    sizing = None
    if decision is None:
        capacity, sizing, memory = _capacity(snapshot, memory, pods, observation)
        decision = _by_demand(snapshot, memory, observation, capacity)
    wanted, history = decision.replicas, decision.history
    if policy.external:
        # The external scaler has its own windows; the operator starts from the current replicas when it takes over
        # again.
        wanted, history = ordered, replace(history, lowest=(), highest=())
    elif _unread(snapshot):
        wanted = max(wanted, ordered)  # unreadable bounds must not remove replicas
    waking = wanted > 0 and (memory.waking or (ordered == 0 and decision.code == "Waking"))
    memory = replace(memory, replicas=wanted, scaling=history, waking=waking)
    return Scaled(decision, memory, replicas.blocked, sizing, sleep)


def _sleep(
    snapshot: Snapshot,
    memory: Memory,
    pods: Pods,
    observation: ScalingObservation,
    deployment: DeploymentView | None,
) -> tuple[ScalingDecision | None, Reason | None]:
    """Returns the decision to scale to zero, stay at zero or wake; None if demand decides."""
    policy = snapshot.policy
    if policy.idle_timeout is None or snapshot.gateway is None:
        return None, None
    moment = snapshot.at.timestamp()
    view = SleepView(
        time=snapshot.now,
        replicas=observation.replicas,
        ready=observation.ready,
        ready_for=longest_ready(pods, moment),
        stale=observation.stale,
        working=sum(one.running + one.waiting for one in snapshot.fresh.values()),
        troubled=observation.uncredited,
        gateway=snapshot.gateway,
        idle_timeout=policy.idle_timeout,
        max_replicas=policy.bounds.max_replicas,
        busy=_busy(snapshot, memory, deployment),
    )
    demand = memory.demand
    work = HeldWork(
        demand.replica,
        demand.workload,
        policy.slo.targets,
        _tunable(snapshot, memory),
        demand.offered.unit,
        _tightened(snapshot, memory),
    )
    return decide_sleep(view, work, policy.behavior, memory.scaling)


def _busy(snapshot: Snapshot, memory: Memory, deployment: DeploymentView | None) -> Busy:
    if _unread(snapshot):
        return "SpecNotUnderstood"
    if memory.before_override is not None:
        return "Overridden"
    if memory.moving is not None:
        return "EngineUpgrade"
    return "" if deployment is not None and deployment.rolled_out else "RollingOut"


def _unread(snapshot: Snapshot) -> bool:
    return any(field.startswith(_SCALING) for field in snapshot.unread)


def _by_demand(
    snapshot: Snapshot, memory: Memory, observation: ScalingObservation, capacity: Recommendation | None
) -> ScalingDecision:
    policy = snapshot.policy
    by_model = capacity is not None and memory.demand.workload is not None
    targets = policy.targets
    if not by_model:
        targets = replace(policy.fallback_targets, ttft_p95=mean_slo(policy, memory.demand).ttft_p95)
    return decide_scaling(observation, targets, policy.behavior, policy.bounds, memory.scaling, capacity)


def _capacity(
    snapshot: Snapshot, memory: Memory, pods: Pods, observation: ScalingObservation
) -> tuple[Recommendation | None, Sizing | None, Memory]:
    """Returns the recommendation of the capacity model, None before engines report their step costs, and its numbers,
    None before the size of requests is known too."""
    view = demand_view(snapshot, memory.demand, pods, memory.startups, observation)
    view = replace(view, tighten=_tightened(snapshot, memory))
    # Without any sample, the gateway may know the demand of replicas that serve.
    measured = snapshot.fresh or (observation.ready and snapshot.gateway is not None and snapshot.gateway.counts)
    if not measured or view.replica is None:
        return None, None, memory
    if view.workload is None:
        return (unsized_demand(view) if snapshot.fresh else None), None, memory
    replicas, reason, needed, sizing = decide_replicas(
        view, snapshot.policy.slo.targets, _tunable(snapshot, memory), memory.needed
    )
    return Recommendation(replicas, reason), sizing, replace(memory, needed=needed)


def _tightened(snapshot: Snapshot, memory: Memory) -> float:
    """Returns the share of the TPOT target that tuning solves for: limits of less carry less."""
    model = tuning_model(snapshot, memory.demand)
    if model is None or snapshot.policy.tuning is not TuningMode.AUTO or memory.before_override is not None:
        return 1.0
    return tpot_share(snapshot.policy.slo, model, memory.tuning)


def _tunable(snapshot: Snapshot, memory: Memory) -> LimitsBounds:
    """Returns the bounds of tuning now."""
    bounds = limits_bounds(snapshot.policy)
    if memory.before_override is not None:
        return LimitsBounds(memory.limits.limits, memory.limits.limits)
    if snapshot.policy.tuning is TuningMode.RECOMMEND:
        return bounds.up_to(memory.limits.limits)
    return bounds

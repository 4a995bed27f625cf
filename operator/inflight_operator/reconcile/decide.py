"""The plan of one round, from a snapshot and the memory of earlier rounds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inflight_operator.api.status import Decision as RecordedDecision
from inflight_operator.decide.autopilot import DemandMemory
from inflight_operator.decide.conditions import Finding, Metrics, Status, find_conditions, held
from inflight_operator.decide.decision import Decision, Number, Reason
from inflight_operator.decide.draining import deletion_costs
from inflight_operator.decide.foreign_fit import ForeignFit
from inflight_operator.decide.gateway_conditions import GatewayFacts, with_gateway
from inflight_operator.decide.override import decide_override
from inflight_operator.decide.pods import Pods, classify
from inflight_operator.decide.pool_condition import pool_condition
from inflight_operator.decide.scaling import ScalingDecision
from inflight_operator.decide.sentences import sentence
from inflight_operator.decide.tuning import TuningMode, decide_tuning
from inflight_operator.decide.tuning_model import end_canary, modelled_limits
from inflight_operator.decide.tuning_types import TuningState
from inflight_operator.limits import Limits, LimitsInForce
from inflight_operator.observe.gateway_view import GatewayView
from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import PodView
from inflight_operator.reconcile.memory import CanaryInForce, Memory, Rendered
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.replicas import Scaled, scale
from inflight_operator.reconcile.snapshot import Snapshot, deployment_view
from inflight_operator.reconcile.template import Template, decide_template
from inflight_operator.reconcile.views import (
    bounds_of_tuning,
    limits_bounds,
    mean_slo,
    measured,
    tuning_model,
    tuning_view,
)
from inflight_operator.render import ChildPlan, render
from inflight_operator.render.inference_pool import INFERENCE_POOL_API

_TUNING = ("spec.tuning", "spec.slo")
"""Fields that, if unreadable, make the operator act conservatively."""

ROUTING_SECONDS = 1.0
"""From an address in an EndpointSlice to rules on every node: kube-proxy writes them at most once a second."""

SAME_ADVICE = 1.2
"""Advised limits within this ratio of each other are one advice."""


@dataclass(frozen=True, slots=True)
class _Tuned:
    """Limits to be in force, the changes that led to them, and the reason."""

    memory: Memory
    changes: tuple[Decision, ...] = ()


def decide(snapshot: Snapshot, memory: Memory) -> Plan:
    """The plan for one service; `Plan.memory` is an input of its next round."""
    memory = _brought_up_to(snapshot, memory)
    pods = classify(
        snapshot.pods,
        snapshot.policy.facts,
        memory.startups,
        snapshot.policy.startup_limit,
        snapshot.at.timestamp(),
    )
    shown = measured(snapshot)
    by_hand = _override(snapshot, memory)
    scaled = scale(snapshot, by_hand.memory, pods, shown)
    scaling = scaled.decision
    tuned = _limits(snapshot, scaled.memory)
    memory, rendered = _children(snapshot, tuned.memory)
    template = decide_template(snapshot, memory, rendered.children, rolled_out=_rolled_out(snapshot, memory, pods))
    moving = (memory.moving or len(pods.ready)) if template.state == "Moving" else None
    memory = replace(memory, moving=moving, waking=memory.waking and not _routed(snapshot, memory))
    targets = _targets(snapshot, memory)
    behind = tuple((pod, limits) for pod, limits in targets if not _in_force(snapshot, pod.uid, limits))
    return Plan(
        replicas=memory.replicas,
        desired=scaling.replicas,
        limits=memory.limits,
        canary=memory.canary,
        in_force=len(targets) - len(behind),
        children=tuple(one for one in rendered.children if not (template.hold and one["kind"] == "Deployment")),
        hold_template=template.hold,
        findings=_findings(snapshot, memory, pods, scaled, template, {pod.uid for pod, _ in behind}),
        memory=memory,
        measured=shown,
        blocked=scaled.blocked,
        sizing=scaled.sizing,
        tell=behind,
        deletion_costs=_deletion_costs(snapshot, memory),
        decisions=_decisions(snapshot, memory, scaling, (*by_hand.changes, *tuned.changes)),
        modelled=_modelled(snapshot, memory),
        upgrade=template.state,
    )


def _brought_up_to(snapshot: Snapshot, memory: Memory) -> Memory:
    """The memory that still applies to this service, updated from the snapshot."""
    engine = f"{snapshot.policy.engine}/{snapshot.image}"
    if memory.engine != engine:
        # Measurements of another model, image or accelerator do not apply to this one.
        state = TuningState(window_start=snapshot.now)
        demand = replace(memory.demand, replica=None, fit=ForeignFit())
        memory = replace(memory, engine=engine, tuning=state, tuning_reason=None, demand=demand, needed=DemandMemory())
    newest = max((sample.revision or 0 for sample in snapshot.fresh.values()), default=0)
    if newest > memory.revision < memory.first_revision:
        # The status is older than its engines: they would reject the next revision. Claims of a pod are not trusted.
        memory = replace(memory, limits=replace(memory.limits, revision=memory.first_revision))
    listed = any(pod.serves and pod.uid in snapshot.listed for pod in snapshot.pods)
    since = memory.routed_since if memory.routed_since is not None else snapshot.now
    startups = memory.startups.with_pods(snapshot.pods)
    return replace(memory, startups=startups, routed_since=since if listed else None)


def _override(snapshot: Snapshot, memory: Memory) -> _Tuned:
    """Limits by hand as they begin, change and end, before all that depends on the limits in force. An override ends a
    canary."""
    limits, before = memory.limits.limits, memory.before_override
    decision = decide_override(snapshot.policy.override, snapshot.at, limits, before, snapshot.policy.capacity)
    if (decision.limits, decision.before) == (limits, before):
        return _Tuned(memory)
    state = replace(memory.tuning, trial=None, move=None, window_start=snapshot.now)
    memory = replace(_told(memory, decision.limits, state), before_override=decision.before, tuning_reason=None)
    return _Tuned(memory, decision.changes)


def _modelled(snapshot: Snapshot, memory: Memory) -> Limits | None:
    """The best limits by the cost model: from tuning's last use of it, or computed now if tuning does not use it."""
    policy = snapshot.policy
    if policy.tuning is not TuningMode.OFF and memory.before_override is None:
        return memory.tuning.modelled
    model = tuning_model(snapshot, memory.demand)
    if model is None or not snapshot.fresh:
        return None
    return modelled_limits(bounds_of_tuning(policy), mean_slo(policy, memory.demand), model, memory.tuning)


def _limits(snapshot: Snapshot, memory: Memory) -> _Tuned:
    """Unchanged under an override and while no ready engine reports its limits, except that a canary ends then."""
    if memory.before_override is not None:
        return _Tuned(memory)
    tunable = {pod.uid: pod.name for pod in _tunable(snapshot)}
    state = memory.tuning
    if not tunable:
        if memory.canary is None:
            return _Tuned(memory)
        ended = end_canary(memory.limits.limits, state, snapshot.now)
        return _Tuned(_told(memory, ended.limits, ended.state), ended.changes)
    mode = snapshot.policy.tuning
    if any(field.startswith(_TUNING) for field in snapshot.unread):
        mode = TuningMode.RECOMMEND
    slo = mean_slo(snapshot.policy, memory.demand)
    decision = decide_tuning(
        mode,
        tuning_view(snapshot.window, state.window_start, snapshot.now, slo, tunable),
        memory.limits.limits,
        limits_bounds(snapshot.policy),
        slo,
        tuning_model(snapshot, memory.demand),
        state,
        snapshot.tuning,
    )
    if decision.reason.code != "Measuring" or memory.tuning_reason is None:
        memory = replace(memory, tuning_reason=decision.reason)
    return _Tuned(_told(memory, decision.limits, decision.state), decision.changes)


def _told(memory: Memory, wanted: Limits, state: TuningState) -> Memory:
    """With the revisions of the service's and the canary's limits. Changed limits get the next revision; so do the
    limits of all pods when a canary ends, as it would reject an older revision."""
    limits, revision, was, now = memory.limits, memory.revision, memory.canary, state.canary
    begun = now is not None and (was is None or (was.uid, was.in_force.limits) != (now.uid, now.limits))
    canary = was if now is not None else None
    if wanted != limits.limits or (was is not None and now is None):
        revision += 1
        limits = LimitsInForce(wanted, revision)
    if now is not None and begun:
        canary = CanaryInForce(now.uid, now.name, LimitsInForce(now.limits, revision + 1))
    return replace(memory, limits=limits, canary=canary, tuning=state)


def _tunable(snapshot: Snapshot) -> list[PodView]:
    """Ready pods that report their limits and accept changes."""
    fresh = snapshot.fresh
    return [
        pod
        for pod in snapshot.pods
        if pod.admin_port is not None and pod.uid in fresh and fresh[pod.uid].limits is not None
    ]


def _targets(snapshot: Snapshot, memory: Memory) -> tuple[tuple[PodView, LimitsInForce], ...]:
    """The tunable pods, each with the limits that it should run with: at most its own capacity."""
    canary = memory.canary
    return tuple(
        (pod, _bounded(canary.in_force if canary and canary.uid == pod.uid else memory.limits, snapshot.fresh[pod.uid]))
        for pod in _tunable(snapshot)
    )


def _bounded(limits: LimitsInForce, sample: Sample) -> LimitsInForce:
    return limits if sample.capacity is None else replace(limits, limits=limits.limits.at_most(sample.capacity))


def _in_force(snapshot: Snapshot, uid: str, limits: LimitsInForce) -> bool:
    """Whether this engine runs with its limits: it reports them, or accepted them after its last sample."""
    sample, told = snapshot.fresh[uid], snapshot.told.get(uid)
    if told is not None and told.taken == limits and told.at >= sample.time:
        return True
    return (sample.limits, sample.revision) == (limits.limits, limits.revision)


def _children(snapshot: Snapshot, memory: Memory) -> tuple[Memory, Rendered]:
    pods = snapshot.gateway_pods or ()
    plan = ChildPlan(memory.replicas, memory.limits, snapshot.admin_token, snapshot.tenant_key, pods)
    known = memory.rendered
    if known is not None and known.made_of(snapshot.service, snapshot.settings, plan):
        return memory, known
    children = tuple(render(snapshot.service, plan, snapshot.settings))
    rendered = Rendered(snapshot.service, snapshot.settings, plan, children)
    return replace(memory, rendered=rendered), rendered


def _rolled_out(snapshot: Snapshot, memory: Memory, pods: Pods) -> bool:
    """Whether all pods are of the newest template, and as many are ready as before the upgrade: an upgrade does not
    have to fix pods that were blocked before."""
    deployment = deployment_view(snapshot.deployment, memory.replicas)
    needed = min(memory.moving or 0, memory.replicas)
    return deployment is not None and deployment.rolled_out and len(pods.ready) >= needed


def _deletion_costs(snapshot: Snapshot, memory: Memory) -> dict[str, int]:
    if memory.replicas >= snapshot.ordered:
        return {}
    return deletion_costs(snapshot.pods, snapshot.fresh)


def _decisions(
    snapshot: Snapshot, memory: Memory, scaling: ScalingDecision, tuned: tuple[Decision, ...]
) -> tuple[Decision, ...]:
    """The decisions to record. The same advice is recorded once, not for each window."""
    made = []
    if scaling.change is not None and scaling.replicas == memory.replicas and not snapshot.policy.external:
        made.append(scaling.change)
    recorded = snapshot.service.status.decisions
    made += [change for change in tuned if not _advised_already(recorded, change)]
    return tuple(made)


def _advised_already(recorded: list[RecordedDecision], decision: Decision) -> bool:
    """Whether the last advice on this limit was nearly the same: advice varies with the traffic."""
    if decision.applied:
        return False
    same_knob = (one for one in reversed(recorded) if (one.kind, one.knob) == (decision.kind, decision.knob))
    last = next(same_knob, None)
    if last is None or last.applied or last.to is None or last.from_ != decision.frm:
        return False
    return max(last.to, decision.to) <= SAME_ADVICE * min(last.to, decision.to)


def _findings(
    snapshot: Snapshot,
    memory: Memory,
    pods: Pods,
    scaled: Scaled,
    template: Template,
    behind: set[str],
) -> tuple[Finding, ...]:
    error = next((snapshot.scrape_errors[pod.uid] for pod in pods.ready if pod.uid in snapshot.scrape_errors), "")
    findings = find_conditions(
        snapshot.service.spec.model.source,
        deployment_view(snapshot.deployment, memory.replicas),
        pods,
        _routed(snapshot, memory),
        Metrics(len(pods.ready), len(snapshot.fresh), error),
        _scaling_finding(snapshot, scaled.decision),
        _tuning_finding(snapshot, memory, pods, behind),
    )
    if snapshot.service.spec.gateway.enabled:
        findings = with_gateway(findings, _gateway_facts(snapshot, memory, scaled))
    if snapshot.service.spec.gateway.inference_pool.enabled:
        findings = (*findings, _pool_condition(snapshot))
    if template.why is None:
        return findings
    return held(findings, template.why.code, sentence(template.why), news=template.state is None)


def _routed(snapshot: Snapshot, memory: Memory) -> bool:
    """Whether a ready pod gets requests."""
    return memory.routed_since is not None and snapshot.now - memory.routed_since >= ROUTING_SECONDS


def _gateway_facts(snapshot: Snapshot, memory: Memory, scaled: Scaled) -> GatewayFacts:
    return GatewayFacts(
        service=snapshot.settings.gateway_service,
        view=snapshot.gateway or GatewayView(),
        why=scaled.sleep,
        asleep=memory.replicas == 0,
        waking=memory.waking,
        blocked=scaled.blocked,
    )


def _pool_condition(snapshot: Snapshot) -> Finding:
    settings = snapshot.settings
    return pool_condition(
        gateway=bool(settings.gateway_service),
        picker=settings.endpoint_picker,
        api=INFERENCE_POOL_API in settings.available_apis,
        parents=snapshot.pool_parents,
    )


def _scaling_finding(snapshot: Snapshot, decision: ScalingDecision) -> Finding:
    policy = snapshot.policy
    if policy.external:
        if policy.replicas is None:
            kept = {"kept": snapshot.ordered, "replicas": decision.replicas}
            reason = Reason("ReplicasUnset", kept, held=decision.reason)
        else:
            reason = Reason("External", {"replicas": decision.replicas}, held=decision.reason)
        return Finding("ScalingActive", "False", reason.code, sentence(reason))
    return Finding("ScalingActive", "True" if decision.able else "False", decision.code, sentence(decision.reason))


def _tuning_finding(snapshot: Snapshot, memory: Memory, pods: Pods, behind: set[str]) -> Finding:
    """Errors of pods that do not run with their limits take precedence over every other reason."""
    complaint = next((one.complaint for uid, one in snapshot.told.items() if one.complaint and uid in behind), "")
    status: Status = "False"
    override, held = snapshot.policy.override, memory.before_override is not None
    if snapshot.policy.tuning is TuningMode.OFF and not held:
        reason = Reason("Off")
    elif complaint:
        reason = Reason("LimitsNotTaken", {"said": complaint})
    elif held and override is not None:
        limits = memory.limits.limits
        numbers: dict[str, Number] = {
            "until": override.end,
            "seqs": limits.max_num_seqs,
            "tokens": limits.max_num_batched_tokens,
        }
        reason = Reason("Overridden", numbers)
    elif not pods.ready:
        status, reason = "Unknown", Reason("NoReadyEngines")
    elif not any(sample.limits is not None for sample in snapshot.fresh.values()):
        reason = Reason("NoLimits")
    elif not _tunable(snapshot):
        reason = Reason("NoAdminPort")
    else:
        status, reason = "True", memory.tuning_reason or Reason("Measuring", {"seconds": snapshot.tuning.window})
    message = sentence(reason)
    if override is not None and not held:
        message += f"; {sentence(Reason('OverrideExpired', {'until': override.end}))}"
    code = "NoReadyPods" if status == "Unknown" else reason.code
    return Finding("TuningActive", status, code, message)

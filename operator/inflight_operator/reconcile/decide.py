"""The plan of one round, from a snapshot and the memory of earlier rounds. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import KIND, SERVICE_LABEL, child_names
from inflight_base.manifest.sharing import shared
from inflight_operator.api.status import Decision as RecordedDecision
from inflight_operator.decide.decision import Decision, Number, Reason
from inflight_operator.decide.draining import deletion_costs
from inflight_operator.decide.prefetch import Prefetching
from inflight_operator.decide.replicas.autopilot import DemandMemory
from inflight_operator.decide.replicas.foreign_fit import ForeignFit
from inflight_operator.decide.replicas.scaling import ScalingDecision
from inflight_operator.decide.rollouts import releases
from inflight_operator.decide.status.conditions import (
    DeploymentView,
    Finding,
    Metrics,
    Status,
    delivered,
    find_conditions,
    held,
    resting,
    uncached,
)
from inflight_operator.decide.status.gateway_conditions import (
    GatewayFacts,
    pool_condition,
    prefill_condition,
    with_gateway,
)
from inflight_operator.decide.status.pods import Pods, classify
from inflight_operator.decide.status.sentences import sentence
from inflight_operator.decide.tuning.tune import TuningMode
from inflight_operator.decide.tuning.types import TuningState
from inflight_operator.observe.gateway_view import GatewayView
from inflight_operator.observe.prefill_view import PrefillView
from inflight_operator.reconcile.front import Front, front
from inflight_operator.reconcile.limits import (
    best_limits,
    is_in_force,
    limit_targets,
    limits_by_hand,
    pods_of_type,
    tunable_pods,
    tuned_limits,
)
from inflight_operator.reconcile.memory import Memory, Rendered, engine_of
from inflight_operator.reconcile.peers import loading, peers, weights_read
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.prefetch import prefetching
from inflight_operator.reconcile.replicas import Scaled, scale
from inflight_operator.reconcile.snapshot import Snapshot, deployment_view
from inflight_operator.reconcile.upgrades import Template, decide_template
from inflight_operator.reconcile.views import lead_time, measured
from inflight_operator.render.inference_pool import INFERENCE_POOL_API
from inflight_operator.render.networkpolicy import clients_ignored
from inflight_operator.render.plan import ChildPlan
from inflight_operator.render.prefill import has_prefill
from inflight_operator.render.service_children import render
from inflight_settings.limits import LimitsInForce

ROUTING_SECONDS = 1.0
"""Seconds from an address in an EndpointSlice to rules on every node: kube-proxy writes them at most once a second."""

SAME_ADVICE = 1.2
"""Ratio of advised limits within which they count as the same advice."""

MOST_DIGESTS = 8
"""Rollouts whose version of the model is kept."""

_CLIENTS = ("spec.networkPolicy", "spec.gateway.auth", "spec.gateway ")
"""Begin of the notes on unreadable parts of the spec that say who may connect to the engines."""


def decide(snapshot: Snapshot, memory: Memory) -> Plan:
    """Returns the plan for one service; `Plan.memory` is an input of its next round."""
    memory = _brought_up_to(snapshot, memory)
    pods = classify(
        snapshot.pods,
        snapshot.policy.facts,
        memory.startups,
        snapshot.policy.startup_limit,
        snapshot.at.timestamp(),
    )
    measurements = measured(snapshot)
    by_hand = limits_by_hand(snapshot, memory)
    scaled = scale(snapshot, by_hand.memory, pods, measurements)
    scaling = scaled.decision
    tuned = tuned_limits(snapshot, scaled.memory)
    step, memory = front(snapshot, tuned.memory)
    rollout = deployment_view(snapshot.deployment, memory.replicas)
    release = releases(snapshot.policy.release_after, rollout, snapshot.pods, snapshot.at.timestamp())
    fetching = prefetching(snapshot, memory)
    memory = replace(memory, prefetch=None if fetching is None else fetching.progress)
    named = peers(snapshot, memory)
    memory, rendered = _children(snapshot, memory, step, fetching, named, release=release)
    template = decide_template(snapshot, memory, rendered.children, rollout, ready=len(pods.ready))
    moving = (memory.moving or len(pods.ready)) if template.state in ("Moving", "Stuck") else None
    memory = replace(memory, moving=moving, waking=memory.waking and not _routed(snapshot, memory))
    wanted = limit_targets(snapshot, memory)
    behind = tuple((pod, limits) for pod, limits in wanted if not is_in_force(snapshot, pod.uid, limits))
    return Plan(
        replicas=memory.replicas,
        desired=scaling.replicas,
        limits=memory.limits,
        canary=memory.canary,
        in_force=len(wanted) - len(behind),
        children=tuple(one for one in rendered.children if not _is_held(one, snapshot, template, step)),
        hold_template=template.hold,
        front=step,
        findings=_findings(snapshot, memory, pods, scaled, template, {pod.uid for pod, _ in behind}, release=release),
        memory=memory,
        measured=measurements,
        blocked=scaled.blocked,
        sizing=scaled.sizing,
        lead_time=lead_time(snapshot, memory.startups, pods),
        push=behind,
        deletion_costs=_deletion_costs(snapshot, memory, rollout),
        decisions=_decisions(snapshot, memory, scaling, (*by_hand.changes, *tuned.changes)),
        modelled=best_limits(snapshot, memory),
        upgrade=template.state,
        prefetch=fetching,
        peers=named,
        loading=loading(snapshot),
    )


def _brought_up_to(snapshot: Snapshot, memory: Memory) -> Memory:
    """Returns the memory that still applies to this service, updated from the snapshot."""
    engine = engine_of(snapshot.policy, snapshot.image)
    if memory.engine != engine:
        state = TuningState(window_start=snapshot.now)
        demand = replace(memory.demand, replica=None, fit=ForeignFit())
        memory = replace(memory, engine=engine, tuning=state, tuning_reason=None, demand=demand, needed=DemandMemory())
    capacity = snapshot.policy.capacity
    if not snapshot.policy.engine_type.live_limits and memory.limits.limits != capacity:
        # Engines of the service's earlier type may have had others.
        limits = LimitsInForce(capacity, memory.revision + 1)
        memory = replace(memory, limits=limits, canary=None, before_override=None)
    newest = max((sample.revision or 0 for sample in snapshot.fresh.values()), default=0)
    if newest > memory.revision < memory.first_revision:
        # The status is older than its engines: they would reject the next revision. Claims of a pod are not trusted.
        memory = replace(memory, limits=replace(memory.limits, revision=memory.first_revision))
    listed = any(pod.serves and pod.uid in snapshot.listed for pod in snapshot.pods)
    since = memory.routed_since if memory.routed_since is not None else snapshot.now
    startups = memory.startups.with_pods(
        snapshot.policy.engine,
        snapshot.pods,
        snapshot.listed,
        snapshot.fresh,
        snapshot.policy.startup_limit,
        snapshot.at.timestamp(),
    )
    since_listed = since if listed else None
    return replace(
        memory,
        startups=startups,
        routed_since=since_listed,
        digests=_digests(snapshot, memory),
        weights=weights_read(snapshot, memory),
    )


def _digests(snapshot: Snapshot, memory: Memory) -> tuple[tuple[str, str], ...]:
    """Returns the version of the model by rollout, the newest rollout at the end. The first ready pod of a rollout
    decides on it. It is forgotten when the rollout has no pods and another one is complete: who returns to an earlier
    spec asks for a rollout, too."""
    known = dict(memory.digests)
    for pod in sorted(snapshot.pods, key=lambda pod: (pod.ready_since or math.inf, pod.name)):
        sample = snapshot.fresh.get(pod.uid)  # only ready pods have one
        if sample is not None and sample.digest:
            known.setdefault(pod.rollout, sample.digest)
    alive = [pod.rollout for pod in sorted(snapshot.replicas, key=lambda pod: pod.created) if pod.rollout in known]
    newest = list(known)[-1:]
    # While a rollout is under way, it may lose its only pod, and pods of the earlier one are replaced, too: neither
    # which rollouts have pods nor which pod is the newest says which rollout ends.
    rollout = deployment_view(snapshot.deployment, memory.replicas)
    if rollout is not None and rollout.rolled_out:
        newest = alive[-1:] or newest
        known = {name: digest for name, digest in known.items() if name in (*alive, *newest)}
    kept = sorted(known, key=lambda name: (name in newest, name in alive))[-MOST_DIGESTS:]
    return tuple((name, known[name]) for name in kept)


def _is_held(child: Manifest, snapshot: Snapshot, template: Template, step: Front) -> bool:
    """Returns True for a child whose live object stays as it is."""
    if child["kind"] == "Deployment":
        return template.hold
    if child["kind"] == KIND:
        return bool(snapshot.unread) and snapshot.prefill is not None
    of_all = child["metadata"]["name"] == child["metadata"]["labels"][SERVICE_LABEL]
    if child["kind"] == "NetworkPolicy" and of_all:  # without what cannot be read, it could let more clients in
        return any(note.startswith(_CLIENTS) for note in snapshot.unread)
    return child["kind"] == "Service" and of_all and step.hold


def _children(
    snapshot: Snapshot,
    memory: Memory,
    step: Front,
    fetching: Prefetching | None,
    named: tuple[tuple[str, str], ...],
    *,
    release: bool,
) -> tuple[Memory, Rendered]:
    pods = snapshot.gateway_pods or () if snapshot.policy.inference_pool else ()
    plan = ChildPlan(
        memory.replicas,
        memory.limits,
        snapshot.admin_token,
        snapshot.policy.template_inputs,
        snapshot.tenant_keys,
        pods,
        step.pods,
        step.leaving,
        release,
        memory.digests,
        "" if fetching is None else fetching.progress.run,
        () if fetching is None else fetching.places,
        named,
        snapshot.policy.prefill_of,
    )
    known = memory.rendered
    if known is not None and known.made_of(snapshot.service, snapshot.settings, plan):
        return memory, known
    service, settings = snapshot.service, snapshot.settings
    children = tuple(shared(child) for child in render(service, plan, settings))
    rendered = Rendered(service.spec, service.metadata, settings, plan, children)
    return replace(memory, rendered=rendered), rendered


def _deletion_costs(snapshot: Snapshot, memory: Memory, rollout: DeploymentView | None) -> dict[str, int]:
    if memory.replicas >= snapshot.ordered:
        return {}
    # Pods that were to leave before may still be there. In a rollout each of two ReplicaSets removes some of its own.
    leaving = max(snapshot.ordered, len(snapshot.replicas)) - memory.replicas
    rolled_out = rollout is not None and rollout.rolled_out
    return deletion_costs(snapshot.pods, snapshot.fresh, leaving if rolled_out else None)


def _decisions(
    snapshot: Snapshot, memory: Memory, scaling: ScalingDecision, tuned: tuple[Decision, ...]
) -> tuple[Decision, ...]:
    """Returns the decisions to record. The same advice is recorded once, not for each window."""
    made = []
    if scaling.change is not None and scaling.replicas == memory.replicas and not snapshot.policy.external:
        made.append(scaling.change)
    recorded = snapshot.service.status.decisions
    made += [change for change in tuned if not _advised_already(recorded, change)]
    return tuple(made)


def _advised_already(recorded: list[RecordedDecision], decision: Decision) -> bool:
    """Returns True if the last advice on this limit was nearly the same: advice varies with the traffic."""
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
    *,
    release: bool,
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
    problems = [sample.cache_problem for sample in snapshot.fresh.values() if sample.cache_problem]
    findings = uncached(findings, problems, len(pods.ready))
    findings = delivered(findings, memory.weights.values())
    findings = resting(findings, snapshot.asleep, len(pods.ready))
    if snapshot.service.spec.gateway.enabled and not snapshot.policy.prefill_of:
        findings = with_gateway(findings, _gateway_facts(snapshot, memory, scaled))
    if snapshot.service.spec.gateway.inference_pool.enabled:
        findings = (*findings, _pool_condition(snapshot))
    if has_prefill(snapshot.service, snapshot.settings):
        name = child_names(snapshot.service.metadata.name).prefill
        findings = (*findings, prefill_condition(snapshot.prefill or PrefillView(name)))
    if clients_ignored(snapshot.service, snapshot.settings):
        reason = Reason("OperatorOutside")
        findings = (*findings, Finding("NetworkPolicy", "False", reason.code, sentence(reason)))
    if release:
        reason = Reason("ReleasesFirst", {"after": snapshot.policy.release_after or 0.0})
        findings = held(findings, reason.code, sentence(reason), replaces=False)
    if template.why is None:
        return findings
    return held(findings, template.why.code, sentence(template.why), replaces=template.state is None)


def routed_in(memory: Memory, now: float) -> float:
    """Returns the seconds until the Service has listed a ready pod for `ROUTING_SECONDS`; infinite without one."""
    return float("inf") if memory.routed_since is None else max(0.0, memory.routed_since + ROUTING_SECONDS - now)


def _routed(snapshot: Snapshot, memory: Memory) -> bool:
    return routed_in(memory, snapshot.now) == 0.0


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
        elsewhere=sum(pod.serves and pod.engine.port != snapshot.policy.engine_type.port for pod in snapshot.pods),
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
    """Returns the condition TuningActive. Errors of pods that do not run with their limits take precedence over every
    other reason."""
    facts = snapshot.policy.engine_type
    if not facts.limits:
        reason = Reason("NoLiveLimits", {"type": facts.name})
        return Finding("TuningActive", "False", reason.code, sentence(reason))
    samples = [snapshot.fresh[pod.uid] for pod in pods_of_type(snapshot)]
    error = next((one.error for uid, one in snapshot.pushes.items() if one.error and uid in behind), "")
    status: Status = "False"
    override, held = snapshot.policy.override, memory.before_override is not None
    if snapshot.policy.tuning is TuningMode.OFF and not held:
        reason = Reason("Off")
    elif error:
        reason = Reason("LimitsNotTaken", {"said": error})
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
    elif not facts.live_limits:
        kept = memory.tuning_reason
        missing = snapshot.policy.plugin_missing
        reason = Reason("NoPluginImage", held=kept) if missing else Reason("NoPlugin", held=kept)
    elif problem := next((sample.plugin_problem for sample in samples if sample.plugin_problem), ""):
        reason = Reason("PluginUnsupported", {"said": problem})
    elif not any(sample.limits is not None for sample in samples):
        reason = Reason("NoLimits")
    elif not tunable_pods(snapshot):
        reason = Reason("NoAdminPort")
    else:
        status, reason = "True", memory.tuning_reason or Reason("Measuring", {"seconds": snapshot.tuning.window})
    message = sentence(reason)
    if override is not None and not held:
        message += f"; {sentence(Reason('OverrideExpired', {'until': override.end}))}"
    code = "NoReadyPods" if status == "Unknown" else reason.code
    return Finding("TuningActive", status, code, message)

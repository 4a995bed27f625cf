"""From the API's objects to what the decisions take: units and defaults, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inflight_operator.api.quantities import parse_duration
from inflight_operator.api.resolve import tuning_bounds as spec_bounds
from inflight_operator.api.types import InferenceServiceSpec, ScaleDownRules, ScaleUpRules
from inflight_operator.decide.behavior import Behavior, ScalingPolicy, ScalingRules
from inflight_operator.decide.conditions import DeploymentView
from inflight_operator.decide.pod_problems import ServiceFacts
from inflight_operator.decide.scaling import ScalingBounds, ScalingTargets
from inflight_operator.decide.tuning import TuningMode
from inflight_operator.decide.tuning_types import Limits, Slo, TuningBounds
from inflight_operator.observe.metrics import Sample


def scaling_targets(spec: InferenceServiceSpec) -> ScalingTargets:
    targets = spec.scaling.targets
    return ScalingTargets(targets.waiting_requests, targets.kv_utilization, parse_duration(spec.slo.ttft_p95))


def scaling_bounds(spec: InferenceServiceSpec) -> ScalingBounds:
    return ScalingBounds(spec.scaling.min_replicas, spec.scaling.max_replicas)


def scaling_behavior(spec: InferenceServiceSpec) -> Behavior:
    """In mode External whoever scales has rules of its own; the operator then tells what the targets ask for now."""
    if spec.scaling.mode == "External":
        return Behavior(ScalingRules(0.0), ScalingRules(0.0))
    return Behavior(_rules(spec.scaling.behavior.scale_up), _rules(spec.scaling.behavior.scale_down))


def _rules(rules: ScaleUpRules | ScaleDownRules) -> ScalingRules:
    policies = tuple(ScalingPolicy(one.type, one.value, one.period_seconds) for one in rules.policies)
    return ScalingRules(rules.stabilization_window_seconds, policies, rules.select_policy)


def slo(spec: InferenceServiceSpec) -> Slo:
    return Slo(parse_duration(spec.slo.ttft_p95), parse_duration(spec.slo.tpot_p95))


def capacity(spec: InferenceServiceSpec, samples: Iterable[Sample]) -> Limits:
    """What engines were started with: what the spec asks for, or less where an engine says so."""
    samples = tuple(samples)
    seqs = [one.max_num_seqs_capacity for one in samples if one.max_num_seqs_capacity]
    tokens = [one.max_num_batched_tokens_capacity for one in samples if one.max_num_batched_tokens_capacity]
    return Limits(min([spec.engine.max_num_seqs, *seqs]), min([spec.engine.max_num_batched_tokens, *tokens]))


def tuning_bounds(spec: InferenceServiceSpec, most: Limits) -> TuningBounds:
    """The bounds of `spec.tuning` below the capacity `most`; in mode Off the capacity is the one upper bound."""
    bounds = spec_bounds(spec)
    low = Limits(bounds.max_num_seqs.low, bounds.max_num_batched_tokens.low)
    high = Limits(bounds.max_num_seqs.high, bounds.max_num_batched_tokens.high)
    if TuningMode(spec.tuning.mode) is TuningMode.OFF:
        high = most
    high = Limits(
        min(high.max_num_seqs, most.max_num_seqs), min(high.max_num_batched_tokens, most.max_num_batched_tokens)
    )
    low = Limits(min(low.max_num_seqs, high.max_num_seqs), min(low.max_num_batched_tokens, high.max_num_batched_tokens))
    return TuningBounds(low, high)


def service_facts(spec: InferenceServiceSpec, children: Sequence[Mapping[str, Any]]) -> ServiceFacts:
    """What sentences about pods name; the memory limit is that of the rendered pod."""
    limits: Mapping[str, Any] = {}
    for child in children:
        if child["kind"] == "Deployment":
            limits = child["spec"]["template"]["spec"]["containers"][0]["resources"].get("limits", {})
    accelerator = spec.accelerator.resource if spec.accelerator.count else ""
    return ServiceFacts(spec.model.source, accelerator, str(limits.get("memory", "")))


def deployment_view(deployment: Mapping[str, Any] | None, replicas: int) -> DeploymentView | None:
    """The child as last seen; `replicas` is what is ordered now, which the watch may not have told yet."""
    if deployment is None:
        return None
    status = deployment.get("status", {})
    said = {one.get("type"): one for one in status.get("conditions", [])}
    progress, failure = said.get("Progressing", {}), said.get("ReplicaFailure", {})
    stuck = progress.get("reason") == "ProgressDeadlineExceeded"
    return DeploymentView(
        replicas=replicas,
        updated=status.get("updatedReplicas", 0),
        total=status.get("replicas", 0),
        current=status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0),
        deadline_exceeded=progress.get("message", "") if stuck else "",
        refused=failure.get("message", "") if failure.get("status") == "True" else "",
    )

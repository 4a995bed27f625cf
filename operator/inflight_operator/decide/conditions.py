"""The conditions of a service: where it stands, each with a reason and one sentence a person can act on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inflight_operator.decide.pod_problems import Problem, ServiceFacts, main_problem
from inflight_operator.observe.pods import PodView

Status = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition, before it gets its generation and transition time."""

    type: str
    status: Status
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """The parts of the child's status that tell how a rollout goes.

    Attributes:
        replicas: ordered, from its spec.
        updated: pods of the newest template.
        total: pods of all templates.
        current: whether its controller has seen the newest spec.
        deadline_exceeded: what it said when the rollout passed its progress deadline, else empty.
        refused: why the API server takes no pod of it (a quota, an account or priority class that does not exist), else
            empty.
    """

    replicas: int
    updated: int
    total: int
    current: bool
    deadline_exceeded: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Metrics:
    """How scraping goes: ready pods, those of them with fresh samples, and the first sentence of what went wrong."""

    ready: int
    fresh: int
    error: str


def find_conditions(
    facts: ServiceFacts,
    deployment: DeploymentView | None,
    pods: Sequence[PodView],
    metrics: Metrics,
    scaling: Finding,
    tuning: Finding,
) -> tuple[Finding, ...]:
    """All conditions of a service, in the order they are shown.

    Args:
        deployment: None before it was created.
        pods: all pods of the service, those on their way out included.
        scaling, tuning: `ScalingActive` and `TuningActive`, which come from those decisions.
    """
    alive = [pod for pod in pods if not pod.deleting]
    problem = main_problem(alive, facts)
    return (
        _ready(deployment, alive, problem),
        _scheduled(alive, facts),
        _model_loaded(alive, facts),
        _progressing(deployment, alive, problem),
        _metrics_available(metrics),
        scaling,
        tuning,
    )


def stuck(findings: tuple[Finding, ...], reason: str, message: str) -> tuple[Finding, ...]:
    """The findings of a service whose children could not be made what they should be: no progress, and where it waits
    for its first pod, that is why it is not Ready."""
    stopped = {"Progressing": Finding("Progressing", "False", reason, message)}
    if any(one.type == "Ready" and one.reason == "Starting" for one in findings):
        stopped["Ready"] = Finding("Ready", "False", reason, message)
    return tuple(stopped.get(one.type, one) for one in findings)


def unreadable(ready: int, problem: str) -> tuple[Finding, ...]:
    """All conditions of a service whose stored spec cannot be read: nothing is changed until it is corrected.

    Args:
        ready: pods that take requests, as an earlier spec made them.
        problem: what is wrong with the spec, naming the field.
    """
    reason = "SpecInvalid"
    message = f"{problem}: correct the spec, or upgrade the operator if it is older than the CustomResourceDefinition"
    serving = f"{_pods(ready)} of an earlier spec {'take' if ready > 1 else 'takes'} requests; " if ready else ""
    return (
        Finding("Ready", "True" if ready else "False", reason, serving + message),
        *(Finding(kind, "Unknown", reason, message) for kind in ("Scheduled", "ModelLoaded")),
        Finding("Progressing", "False", reason, message),
        Finding("MetricsAvailable", "Unknown", reason, message),
        *(Finding(kind, "False", reason, message) for kind in ("ScalingActive", "TuningActive")),
    )


def _ready(deployment: DeploymentView | None, alive: list[PodView], problem: tuple[Problem, int] | None) -> Finding:
    ready = sum(pod.ready for pod in alive)
    wanted = deployment.replicas if deployment is not None else 1
    if wanted == 0 and not ready:
        return Finding("Ready", "False", "ScaledToZero", "no replicas are wanted: spec.replicas is 0")
    if not ready:
        if problem is None and deployment is not None and deployment.refused:
            return Finding("Ready", "False", "PodsRefused", _refused(deployment))
        if problem is None:
            return Finding("Ready", "False", "Starting", "the first pod has not been created yet")
        return Finding("Ready", "False", problem[0].reason, _sentence(problem, len(alive)))
    count = f"{ready} of {max(wanted, ready)} replicas {'take' if ready > 1 else 'takes'} requests"
    if problem is not None and problem[0].blocking:
        return Finding("Ready", "True", problem[0].reason, f"{count}; {_sentence(problem, len(alive))}")
    return Finding("Ready", "True", "Serving", count)


def _scheduled(alive: list[PodView], facts: ServiceFacts) -> Finding:
    if not alive:
        return Finding("Scheduled", "Unknown", "NoPods", "there are no pods")
    homeless = [pod for pod in alive if not pod.node]
    if not homeless:
        nodes = len({pod.node for pod in alive})
        return Finding("Scheduled", "True", "Scheduled", f"{_pods(len(alive))} on {nodes} node{'s' * (nodes != 1)}")
    problem = main_problem(homeless, facts)
    if problem is None or problem[0].stage != "schedule":
        return Finding("Scheduled", "False", "Scheduling", f"{_share(len(homeless), len(alive))} on no node yet")
    return Finding("Scheduled", "False", problem[0].reason, _sentence(problem, len(alive)))


def _model_loaded(alive: list[PodView], facts: ServiceFacts) -> Finding:
    if any(pod.ready for pod in alive):
        loaded = sum(pod.ready for pod in alive)
        return Finding("ModelLoaded", "True", "Loaded", f"{facts.source} is loaded in {_pods(loaded)}")
    problem = main_problem(alive, facts)
    if problem is None or problem[0].stage in ("schedule", "start"):
        return Finding("ModelLoaded", "Unknown", "NotStarted", "no engine has started yet")
    return Finding("ModelLoaded", "False", problem[0].reason, _sentence(problem, len(alive)))


def _progressing(
    deployment: DeploymentView | None, alive: list[PodView], problem: tuple[Problem, int] | None
) -> Finding:
    if deployment is None:
        return Finding("Progressing", "True", "Creating", "the Deployment is being created")
    if deployment.deadline_exceeded:
        why = f"; {_sentence(problem, len(alive))}" if problem is not None else ""
        message = f"the rollout made no progress for too long: {deployment.deadline_exceeded}{why}"
        return Finding("Progressing", "False", "ProgressDeadlineExceeded", message)
    ready = sum(pod.ready for pod in alive)
    wanted = deployment.replicas
    if deployment.refused and deployment.updated < wanted:
        return Finding("Progressing", "False", "PodsRefused", _refused(deployment))
    if not deployment.current or deployment.updated < wanted or deployment.total > deployment.updated:
        have = "has" if deployment.updated == 1 else "have"
        message = f"{deployment.updated} of {_pods(wanted)} {have} the newest template"
        return Finding("Progressing", "True", "RollingOut", message)
    if ready < wanted:
        why = _sentence(problem, len(alive)) if problem is not None else f"{ready} of {_pods(wanted)} ready"
        return Finding("Progressing", "True", "StartingPods", why)
    if len(alive) > wanted:
        return Finding("Progressing", "True", "RemovingPods", f"{len(alive)} pods, {wanted} wanted")
    return Finding("Progressing", "False", "Complete", f"{_pods(wanted)} ready, all of the newest template")


def _metrics_available(metrics: Metrics) -> Finding:
    if metrics.ready == 0:
        return Finding("MetricsAvailable", "Unknown", "NoReadyPods", "no pod is ready to be measured")
    if metrics.fresh < metrics.ready:
        error = f": {metrics.error}" if metrics.error else ""
        message = f"{metrics.ready - metrics.fresh} of {metrics.ready} ready pods not measured lately{error}"
        return Finding("MetricsAvailable", "False", "ScrapeFailed", message)
    return Finding("MetricsAvailable", "True", "Measured", f"{_pods(metrics.ready)} measured")


def _refused(deployment: DeploymentView) -> str:
    return f"no further pod can be created: {deployment.refused}"


def _sentence(problem: tuple[Problem, int], total: int) -> str:
    what, count = problem
    return f"{_share(count, total)} {what.text}"


def _share(count: int, total: int) -> str:
    return f"{count} of {_pods(total)}"


def _pods(count: int) -> str:
    return f"{count} pod{'s' * (count != 1)}"

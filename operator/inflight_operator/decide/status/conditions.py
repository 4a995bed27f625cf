"""The conditions of a service, each with a reason and one actionable sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from inflight_operator.decide.decision import Reason
from inflight_operator.decide.status.pod_problems import DISK_FULL, Problem
from inflight_operator.decide.status.pods import ClassifiedPod, PodClass, Pods
from inflight_operator.decide.status.sentences import sentence

Status = Literal["True", "False", "Unknown"]

ROLLOUT_STUCK = "ProgressDeadlineExceeded"
"""Reason of Progressing, and of the Deployment's condition, of a rollout without progress for its deadline."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Condition without its generation and transition time."""

    type: str
    status: Status
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """The parts of the child's status that show the progress of a rollout.

    Attributes:
        replicas: ordered, from its spec.
        updated: pods of the newest template.
        total: pods of all templates.
        current: whether its controller has seen the newest spec.
        deadline_exceeded: its message when the rollout passed its progress deadline, else empty.
        refused: why the API server rejects its pods (a quota, an account or priority class that does not exist), else
            empty.
        progress_at: seconds since the epoch of the last progress of a rollout; None if unknown.
        surges: whether it may have pods beyond the replicas.
    """

    replicas: int
    updated: int
    total: int
    current: bool
    deadline_exceeded: str
    refused: str = ""
    progress_at: float | None = None
    surges: bool = True

    @property
    def rolled_out(self) -> bool:
        """True if every pod is of the newest template."""
        return self.current and self.updated >= self.replicas and self.total <= self.updated


@dataclass(frozen=True, slots=True)
class WeightsRead:
    """Bytes of weights that a pod read from other pods and from the source, and how often another pod gave none."""

    from_peers: float
    from_source: float
    failures: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """State of scraping: ready pods, ready pods with fresh samples, and the first error."""

    ready: int
    fresh: int
    error: str


@dataclass(frozen=True, slots=True)
class _Alive:
    """The existing replicas: pods that are neither terminating nor terminated.

    Attributes:
        problem: the most important one, and the number of pods with it; None when every pod serves.
        routed: whether the Service routes to a ready one.
    """

    pods: tuple[ClassifiedPod, ...]
    problem: tuple[Problem, int] | None
    routed: bool

    @property
    def ready(self) -> int:
        return sum(one.kind is PodClass.READY for one in self.pods)

    @property
    def homeless(self) -> tuple[ClassifiedPod, ...]:
        return tuple(one for one in self.pods if not one.pod.node)


def find_conditions(
    source: str,
    deployment: DeploymentView | None,
    pods: Pods,
    routed: bool,
    metrics: Metrics,
    scaling: Finding,
    tuning: Finding,
) -> tuple[Finding, ...]:
    """Returns all conditions of a service, in the order of the status.

    Args:
        source: `spec.model.source`.
        deployment: None before it was created.
        routed: whether the Service routes to a ready pod: before that, clients are refused.
        scaling, tuning: `ScalingActive` and `TuningActive`, which come from those decisions.
    """
    replicas = tuple(one for one in pods.all if one.kind not in (PodClass.LEAVING, PodClass.EVICTED))
    alive = _Alive(replicas, _main_problem(replicas), routed)
    findings = (
        _ready(deployment, alive),
        _scheduled(alive),
        _model_loaded(alive, source),
        _progressing(deployment, alive),
        _metrics_available(metrics),
        scaling,
        tuning,
    )
    return findings if alive.ready else _too_large(findings, pods)


def _too_large(findings: tuple[Finding, ...], pods: Pods) -> tuple[Finding, ...]:
    """Returns the findings of a service without a ready pod. While pods of the newest template are evicted, as their
    volume does not hold the model, those that start are no good sign."""
    newest = max((one.pod for one in pods.all), key=lambda pod: pod.created, default=None)
    evicted = [
        one.problem
        for one in pods.all
        if newest and one.pod.rollout == newest.rollout and one.problem and one.problem.reason == DISK_FULL
    ]
    if not evicted:
        return findings
    message = f"{_share(len(evicted), len(pods.all))} {evicted[-1].text}"
    return tuple(
        Finding(one.type, "False", DISK_FULL, message)
        if one.type in ("Ready", "ModelLoaded") and one.reason in ("Scheduling", "Starting", "NotStarted", "Loading")
        else one
        for one in findings
    )


def _main_problem(pods: Iterable[ClassifiedPod]) -> tuple[Problem, int] | None:
    found = [one.problem for one in pods if one.problem is not None]
    if not found:
        return None
    first = max(found, key=lambda problem: problem.rank)
    return first, sum(problem.reason == first.reason for problem in found)


def stuck(findings: tuple[Finding, ...], reason: str, message: str) -> tuple[Finding, ...]:
    """Returns the findings of a service whose children cannot be applied: no progress, and the reason of Ready=False
    while it waits for its first pod."""
    stopped = {"Progressing": Finding("Progressing", "False", reason, message)}
    if any(one.type == "Ready" and one.reason in ("Starting", "Waking") for one in findings):
        stopped["Ready"] = Finding("Ready", "False", reason, message)
    return tuple(stopped.get(one.type, one) for one in findings)


def pool_refused(findings: tuple[Finding, ...], reason: str, message: str) -> tuple[Finding, ...]:
    """Returns the findings of a service whose InferencePool, or its picker's Service or endpoints, cannot be
    applied."""
    refused = Finding("InferencePool", "False", reason, message)
    return tuple(refused if one.type == refused.type else one for one in findings)


def held(findings: tuple[Finding, ...], reason: str, message: str, *, replaces: bool) -> tuple[Finding, ...]:
    """Returns the findings of a service whose pod template is left unchanged.

    Args:
        replaces: True if this replaces the message of Progressing rather than being appended to it.
    """
    if replaces:
        return stuck(findings, reason, message)
    old = next(one for one in findings if one.type == "Progressing")
    new = replace(old, message=f"{old.message}; {message}")
    return tuple(new if one is old else one for one in findings)


def uncached(findings: tuple[Finding, ...], problems: Collection[str], ready: int) -> tuple[Finding, ...]:
    """Returns the findings of a service whose pods have loaded the model without the model cache.

    Args:
        problems: the reason of each such pod.
        ready: pods that take requests.
    """
    if not problems:
        return findings
    old = next(one for one in findings if one.type == "ModelLoaded")
    what = f"{_share(len(problems), ready)} did not use the model cache: {min(problems)}"
    new = replace(old, message=f"{old.message}; {what}")
    return tuple(new if one is old else one for one in findings)


def delivered(findings: tuple[Finding, ...], weights: Collection[WeightsRead]) -> tuple[Finding, ...]:
    """Returns the findings of a service whose pods read weights from each other.

    Args:
        weights: of each pod that is known to have read them.
    """
    from_peers, from_source = sum(one.from_peers for one in weights), sum(one.from_source for one in weights)
    if not from_peers + from_source:
        return findings
    old = next(one for one in findings if one.type == "ModelLoaded")
    what = f"{from_peers / 1e9:.1f} GB of weights came from other pods, {from_source / 1e9:.1f} GB from the source"
    if failures := sum(one.failures for one in weights):
        what += f"; failed reads from other pods: {failures:.0f}, see the logs of the engines"
    new = replace(old, message=f"{old.message}; {what}")
    return tuple(new if one is old else one for one in findings)


def resting(findings: tuple[Finding, ...], asleep: int, ready: int) -> tuple[Finding, ...]:
    """Returns the findings of a service, which say so if all its ready pods are asleep.

    Args:
        asleep, ready: pods.
    """
    old = next(one for one in findings if one.type == "Ready")
    if asleep < max(1, ready) or old.reason != "Serving":
        return findings
    why = Reason("Asleep", {"pods": asleep})
    new = replace(old, reason=why.code, message=f"{old.message}; {sentence(why)}")
    return tuple(new if one is old else one for one in findings)


def summarized(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Returns the findings, with Reconciling while pods change and Stalled while a change cannot continue without
    intervention: tools that wait for any resource read these two (kstatus of sigs.k8s.io/cli-utils, README). By its
    rules neither is set at rest."""
    progressing = next(one for one in findings if one.type == "Progressing")
    if progressing.status == "True":
        return (*findings, replace(progressing, type="Reconciling"))
    if progressing.reason == "Complete":
        return findings
    return (*findings, replace(progressing, type="Stalled", status="True"))


def unreadable(ready: int, problem: str) -> tuple[Finding, ...]:
    """Returns all conditions of a service whose stored spec cannot be read: nothing is changed until it is corrected.

    Args:
        ready: pods that take requests, as an earlier spec made them.
        problem: error in the spec, with the name of the field.
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


def _ready(deployment: DeploymentView | None, alive: _Alive) -> Finding:
    problem, ready, total = alive.problem, alive.ready, len(alive.pods)
    wanted = deployment.replicas if deployment is not None else 1
    if wanted == 0 and not ready:
        return Finding("Ready", "False", "ScaledToZero", "spec.replicas is 0")
    if not ready:
        if problem is None and deployment is not None and deployment.refused:
            return Finding("Ready", "False", "PodsRefused", _refused(deployment))
        if problem is None:
            return Finding("Ready", "False", "Starting", "the first pod has not been created yet")
        return Finding("Ready", "False", problem[0].reason, _sentence(problem, total))
    if not alive.routed:
        return Finding("Ready", "False", "NotRouted", f"{_pods(ready)} ready; the Service does not route to it yet")
    count = f"{ready} of {max(wanted, ready)} replicas {'take' if ready > 1 else 'takes'} requests"
    if problem is not None and problem[0].blocking:
        return Finding("Ready", "True", problem[0].reason, f"{count}; {_sentence(problem, total)}")
    return Finding("Ready", "True", "Serving", count)


def _scheduled(alive: _Alive) -> Finding:
    total, homeless = len(alive.pods), alive.homeless
    if not total:
        return Finding("Scheduled", "Unknown", "NoPods", "there are no pods")
    if not homeless:
        nodes = len({one.pod.node for one in alive.pods})
        return Finding("Scheduled", "True", "Scheduled", f"{_pods(total)} on {nodes} node{'s' * (nodes != 1)}")
    problem = _main_problem(homeless)
    if problem is None or problem[0].stage != "schedule":
        return Finding("Scheduled", "False", "Scheduling", f"{_share(len(homeless), total)} on no node yet")
    return Finding("Scheduled", "False", problem[0].reason, _sentence(problem, total))


def _model_loaded(alive: _Alive, source: str) -> Finding:
    if alive.ready:
        return Finding("ModelLoaded", "True", "Loaded", f"{source} is loaded in {_pods(alive.ready)}")
    problem = alive.problem
    if problem is None or problem[0].stage in ("schedule", "start"):
        return Finding("ModelLoaded", "Unknown", "NotStarted", "no engine has started yet")
    return Finding("ModelLoaded", "False", problem[0].reason, _sentence(problem, len(alive.pods)))


def _progressing(deployment: DeploymentView | None, alive: _Alive) -> Finding:
    if deployment is None:
        return Finding("Progressing", "True", "Creating", "the Deployment is being created")
    problem, total = alive.problem, len(alive.pods)
    if deployment.deadline_exceeded:
        why = f"; {_sentence(problem, total)}" if problem is not None else ""
        message = f"the rollout exceeded its progress deadline: {deployment.deadline_exceeded}{why}"
        return Finding("Progressing", "False", ROLLOUT_STUCK, message)
    wanted = deployment.replicas
    if deployment.refused and deployment.updated < wanted:
        return Finding("Progressing", "False", "PodsRefused", _refused(deployment))
    if not deployment.rolled_out:
        have = "has" if deployment.updated == 1 else "have"
        message = f"{deployment.updated} of {_pods(wanted)} {have} the newest template"
        return Finding("Progressing", "True", "RollingOut", message)
    if alive.ready < wanted:
        why = _sentence(problem, total) if problem is not None else f"{alive.ready} of {_pods(wanted)} ready"
        return Finding("Progressing", "True", "StartingPods", why)
    if total > wanted:
        return Finding("Progressing", "True", "RemovingPods", f"{total} pods, {wanted} wanted")
    return Finding("Progressing", "False", "Complete", f"{_pods(wanted)} ready, all of the newest template")


def _metrics_available(metrics: Metrics) -> Finding:
    if metrics.ready == 0:
        return Finding("MetricsAvailable", "Unknown", "NoReadyPods", "no pod is ready")
    if metrics.fresh < metrics.ready:
        error = f": {metrics.error}" if metrics.error else ""
        message = f"{metrics.ready - metrics.fresh} of {metrics.ready} ready pods without recent metrics{error}"
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

"""Classification of a service's pods: ready, starting, blocked, leaving or evicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from inflight_operator.decide.replicas.start_up import StartUps
from inflight_operator.decide.status.pod_problems import Problem, ServiceFacts, pod_problem
from inflight_operator.observe.pods import PodView

SHORTEST_CREDIT = 30.0
"""Seconds that every pod may take to start, however fast the others were."""

LONG_RUN = 600.0
"""Seconds of running after which Kubernetes, and the operator, ignore earlier restarts of a container."""


class PodClass(StrEnum):
    """READY takes requests. STARTING will take requests, and counts as ordered until its start-up time is over. BLOCKED
    will not without intervention. LEAVING is being deleted, EVICTED has terminated: neither is a replica."""

    READY = "ready"
    STARTING = "starting"
    BLOCKED = "blocked"
    LEAVING = "leaving"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class ClassifiedPod:
    """A pod with its class.

    Attributes:
        problem: why it does not serve; None for pods that serve or leave.
        late: a starting pod that takes longer than other pods of this service did.
    """

    pod: PodView
    kind: PodClass
    problem: Problem | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Replicas:
    """Ordered replicas by class.

    Attributes:
        ready: replicas that take requests.
        blocked: replicas that will not become ready without intervention, including pods that the API server refuses to
            create.
        late: replicas that take longer than usual to start.
        cause: why most of them are blocked, as text; empty if none is.
        shared_cause: whether a further replica would be blocked as well: a cause outside the pod itself, or one that
            more than one pod has.
    """

    ready: int = 0
    blocked: int = 0
    late: int = 0
    cause: str = ""
    shared_cause: bool = False


@dataclass(frozen=True, slots=True)
class Pods:
    """All pods of a service, classified."""

    all: tuple[ClassifiedPod, ...] = ()

    @property
    def ready(self) -> tuple[PodView, ...]:
        """Pods that take requests."""
        return tuple(one.pod for one in self.all if one.kind is PodClass.READY)

    @property
    def replicas(self) -> tuple[PodView, ...]:
        """Pods that are neither terminating nor terminated."""
        return tuple(one.pod for one in self.all if one.kind not in (PodClass.LEAVING, PodClass.EVICTED))


def classify(
    pods: Sequence[PodView], facts: ServiceFacts, startups: StartUps, startup_limit: float, now: float
) -> Pods:
    """Returns each pod with its class.

    Args:
        startup_limit: seconds a pod may take to start by its probe; used before the first observed start-up.
        now: seconds since the epoch.
    """
    seen = startups.p95
    usual = startup_limit if seen is None else max(seen, SHORTEST_CREDIT)
    return Pods(tuple(_classified(pod, facts, usual, startup_limit, now) for pod in pods))


def _classified(pod: PodView, facts: ServiceFacts, usual: float, limit: float, now: float) -> ClassifiedPod:
    if pod.deleting:
        return ClassifiedPod(pod, PodClass.LEAVING)
    if pod.phase in ("Failed", "Succeeded"):
        return ClassifiedPod(pod, PodClass.EVICTED, pod_problem(pod, facts))
    if pod.serves:
        return ClassifiedPod(pod, PodClass.READY)
    problem = pod_problem(pod, facts)
    if problem is not None and problem.blocking and not _has_another_try(pod):
        return ClassifiedPod(pod, PodClass.BLOCKED, problem)
    if pod.running_since is None:
        # Adding a node or pulling an image takes the same time for every further pod.
        return ClassifiedPod(pod, PodClass.STARTING, problem, late=now - pod.created > limit)
    since = max(pod.running_since, pod.unready_since or 0.0)
    return ClassifiedPod(pod, PodClass.STARTING, problem, late=now - since > usual)


def _has_another_try(pod: PodView) -> bool:
    """Returns True if the container, which has ended once, is started again: only a container that ends again and again
    is blocked."""
    long_run = pod.last_run is not None and pod.last_run >= LONG_RUN
    return pod.running_since is not None and (pod.restarts <= 1 or long_run)


def count_replicas(pods: Pods, ordered: int, refused: str) -> Replicas:
    """The classes of `ordered` replicas.

    Args:
        refused: why the API server creates no further pod, else empty: missing pods then count as blocked.
    """
    blocked = [one.problem for one in pods.all if one.kind is PodClass.BLOCKED and one.problem is not None]
    missing = max(0, ordered - len(pods.replicas)) if refused else 0
    causes = [(problem.reason, problem.text) for problem in blocked]
    reasons = [reason for reason, _ in causes]
    main = max(causes, key=lambda cause: reasons.count(cause[0]), default=("", ""))
    outside = any(problem.stage in ("schedule", "start") for problem in blocked)
    late = [one.pod for one in pods.all if one.late]
    many_late = len(late) > 1 or any(pod.running_since is None for pod in late)
    return Replicas(
        ready=len(pods.ready),
        blocked=len(blocked) + missing,
        late=len(late),
        cause=main[1] or (f"no further pod can be created: {refused}" if missing else ""),
        shared_cause=bool(missing) or outside or many_late or any(reasons.count(reason) > 1 for reason in reasons),
    )

"""What each pod of a service counts for: a replica that serves, one that will soon, one that will not, or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from inflight_operator.decide.pod_problems import Problem, ServiceFacts, pod_problem
from inflight_operator.observe.pods import PodView

SEEN = 32
"""Start-up times that are remembered of a service."""

SHORTEST_CREDIT = 30.0
"""Seconds that every pod may take to start, however fast the others were."""

LONG_RUN = 600.0
"""Seconds of running after which Kubernetes forgets earlier restarts of a container, and so do we."""


class PodClass(StrEnum):
    """READY takes requests. STARTING will, and counts as ordered until its start-up time is over. BLOCKED will not
    unless something is done about it. LEAVING is being deleted, EVICTED has ended: neither is a replica."""

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
        late: a starting pod that has taken longer than pods of this service do.
    """

    pod: PodView
    kind: PodClass
    problem: Problem | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class StartUps:
    """How long containers of a service took from their start to ready, as far as it was seen. What comes before, a node
    and the image, depends on the cluster and is different for the next pod.

    Attributes:
        seconds: the last `SEEN` of them, oldest first.
        since_created: the same pods' seconds from the creation of the pod until it was ready.
        counted: uids of pods that were counted and are still there.
    """

    seconds: tuple[float, ...] = ()
    since_created: tuple[float, ...] = ()
    counted: frozenset[str] = frozenset()

    def with_pods(self, pods: Sequence[PodView]) -> StartUps:
        """With pods that have become ready, each counted once while it is there."""
        new = [pod for pod in pods if pod.uid not in self.counted and pod.ready_since and pod.running_since]
        there = {pod.uid for pod in pods}
        counted = frozenset(uid for uid in self.counted if uid in there) | {pod.uid for pod in new}
        if not new and counted == self.counted:
            return self
        took = sorted(
            (ready, max(0.0, ready - (pod.running_since or 0.0)), max(0.0, ready - pod.created))
            for pod in new
            for ready in [pod.ready_since or 0.0]
        )
        return StartUps(
            (*self.seconds, *(seconds for _, seconds, _ in took))[-SEEN:],
            (*self.since_created, *(seconds for _, _, seconds in took))[-SEEN:],
            counted,
        )

    @property
    def p95(self) -> float | None:
        """Seconds (nearest rank); None before one was seen."""
        if not self.seconds:
            return None
        return sorted(self.seconds)[math.ceil(0.95 * len(self.seconds)) - 1]

    @property
    def usual(self) -> float | None:
        """Seconds from the creation of a pod until it is ready, the median; None before one was seen."""
        return median(self.since_created) if self.since_created else None


@dataclass(frozen=True, slots=True)
class Replicas:
    """Ordered replicas by what they count for.

    Attributes:
        ready: that take requests.
        blocked: that will not become ready by themselves, with those the API server refuses to create.
        late: that start for longer than usual.
        cause: why most of the blocked ones are, in words; empty without any.
        shared_cause: whether a further replica would fare no better: a cause outside the pod itself, or one that more
            than one pod has.
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
        """Those that take requests."""
        return tuple(one.pod for one in self.all if one.kind is PodClass.READY)

    @property
    def replicas(self) -> tuple[PodView, ...]:
        """Without those that leave and those that have ended."""
        return tuple(one.pod for one in self.all if one.kind not in (PodClass.LEAVING, PodClass.EVICTED))


def classify(
    pods: Sequence[PodView], facts: ServiceFacts, startups: StartUps, startup_limit: float, now: float
) -> Pods:
    """Each pod with its class.

    Args:
        startup_limit: seconds a pod may take to start by its probe; what counts before any start-up was seen.
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
        # A node that is added or an image that is pulled takes as long as it takes, for every further pod as well.
        return ClassifiedPod(pod, PodClass.STARTING, problem, late=now - pod.created > limit)
    since = max(pod.running_since, pod.unready_since or 0.0)
    return ClassifiedPod(pod, PodClass.STARTING, problem, late=now - since > usual)


def _has_another_try(pod: PodView) -> bool:
    """Whether a container that ended once runs again: only one that ends again and again is blocked."""
    long_run = pod.last_run is not None and pod.last_run >= LONG_RUN
    return pod.running_since is not None and (pod.restarts <= 1 or long_run)


def count_replicas(pods: Pods, ordered: int, refused: str) -> Replicas:
    """What `ordered` replicas count for.

    Args:
        refused: why the API server creates no further pod, else empty: those that are missing are blocked then.
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

"""Inputs of a round, as one value with one time."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.pods import engine_container
from inflight_base.manifest.slices import GatewayAddress
from inflight_operator.api.types import InferenceService
from inflight_operator.decide.decision import Reason
from inflight_operator.decide.replicas.start_up import Elsewhere, Loading
from inflight_operator.decide.status.conditions import ROLLOUT_STUCK, DeploymentView
from inflight_operator.decide.tuning.types import TuningPolicy
from inflight_operator.observe.front_view import NO_FRONT, FrontView
from inflight_operator.observe.gateway_view import GatewayView
from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import LimitsPush, PodView
from inflight_operator.observe.pool_view import PoolParent
from inflight_operator.observe.prefetch_view import Fetch, Places
from inflight_operator.observe.prefill_view import PrefillView
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.policy import Policy
from inflight_operator.render.plan import Settings


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a service at one moment.

    Attributes:
        service: the service with its status.
        unread: a sentence for each field of the spec that this operator cannot parse.
        policy: the spec converted for the decisions.
        settings: settings of the installation.
        tuning: parameters of tuning.
        now: time on the steady clock.
        at: the same moment by the calendar.
        pods: all pods of the service, including terminating ones.
        deployment: the live Deployment; None without one.
        listed: uids of pods that the Service routes to.
        window: recent samples of the engines.
        fresh: the newest sample of each ready pod that is not stale, by uid.
        scrape_errors: errors of scrapes that gave no sample, by uid.
        pushes: results of pushing limits to engines, by uid.
        admin_token: admin token of the service.
        pooled: whether requests go to the pod with the least work, as the gateway sends them; a Service sends them to
            any.
        may_move: whether the service may upgrade to a newer engine release now.
        mover: a service that is upgrading and that others wait for; empty without one.
        stopped: why no service may upgrade until one that is stuck recovers; None while services may.
        gateway: reports of the gateway's pods on the service; None for one that is not behind the gateway.
        tenant_keys: current and previous tenant key of the service; empty for one that the gateway does not serve.
        gateway_pods: the gateway's ready pods; None: not known yet.
        front: endpoints of its Service.
        leaving: reports of the gateway's pods on a service that left the gateway; None for all others.
        pool_parents: gateways that report on its InferencePool.
        places: where its model is fetched to before engines need it; None for a service that does not ask for it.
        fetches: Jobs that do that.
        elsewhere: starts of other services' pods, while this service has none.
        loading: progress of engines that start for long, by uid of the pod.
        prefill: the engines that compute its prompts; None for a service without such.
    """

    service: InferenceService
    policy: Policy
    settings: Settings
    now: float
    at: datetime
    admin_token: str = ""
    unread: tuple[str, ...] = ()
    tuning: TuningPolicy = field(default_factory=TuningPolicy)
    pods: tuple[PodView, ...] = ()
    deployment: Manifest | None = None
    listed: frozenset[str] = frozenset()
    window: Window = field(default_factory=Window)
    fresh: Mapping[str, Sample] = field(default_factory=dict)
    scrape_errors: Mapping[str, str] = field(default_factory=dict)
    pushes: Mapping[str, LimitsPush] = field(default_factory=dict)
    pooled: bool = False
    may_move: bool = True
    mover: str = ""
    stopped: Reason | None = None
    gateway: GatewayView | None = None
    tenant_keys: tuple[str, ...] = ()
    gateway_pods: tuple[GatewayAddress, ...] | None = ()
    front: FrontView = NO_FRONT
    leaving: GatewayView | None = None
    pool_parents: tuple[PoolParent, ...] = ()
    places: Places | None = None
    fetches: tuple[Fetch, ...] = ()
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    loading: Mapping[str, Loading] = field(default_factory=dict)
    prefill: PrefillView | None = None

    @property
    def ordered(self) -> int:
        """Replicas of the live Deployment; 0 without one."""
        return int(self.deployment["spec"].get("replicas", 0)) if self.deployment is not None else 0

    @property
    def replicas(self) -> tuple[PodView, ...]:
        """Pods that are neither terminating nor terminated."""
        return tuple(pod for pod in self.pods if not pod.deleting and pod.phase not in ("Failed", "Succeeded"))

    @property
    def asleep(self) -> int:
        """Ready pods whose engines are asleep."""
        return sum(sample.asleep > 0 for sample in self.fresh.values())

    @property
    def image(self) -> str:
        """Engine image of the live pod template; empty without one."""
        return "" if self.deployment is None else engine_image(self.deployment)


def engine_image(deployment: Manifest) -> str:
    """Returns the engine's image in a Deployment's pod template."""
    return str(engine_container(deployment["spec"]["template"]["spec"]["containers"])["image"])


def fresh_samples(
    window: Window, pods: tuple[PodView, ...], now: float, max_age: float, answering: Container[str] = ()
) -> dict[str, Sample]:
    """Returns the newest sample of each ready pod, if at most `max_age` seconds old.

    Args:
        answering: uids of pods whose last scrape succeeded. Their samples are in use for as long as the window has
            them: only this process can be the cause of their age.
    """
    ready = {pod.uid for pod in pods if pod.serves}
    return {
        uid: pod.newest
        for uid, pod in window.pods.items()
        if uid in ready and (uid in answering or now - pod.newest.time <= max_age)
    }


def deployment_view(deployment: Mapping[str, Any] | None, replicas: int) -> DeploymentView | None:
    """Returns the Deployment as last seen; `replicas` is the number ordered now, which the watch may not have delivered
    yet."""
    if deployment is None:
        return None
    status = deployment.get("status", {})
    said = {one.get("type"): one for one in status.get("conditions", [])}
    progress, failure = said.get("Progressing", {}), said.get("ReplicaFailure", {})
    stuck = progress.get("reason") == ROLLOUT_STUCK
    spec = deployment["spec"]
    return DeploymentView(
        replicas=replicas,
        updated=status.get("updatedReplicas", 0),
        total=status.get("replicas", 0),
        current=status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0),
        deadline_exceeded=progress.get("message", "") if stuck else "",
        refused=failure.get("message", "") if failure.get("status") == "True" else "",
        progress_at=_progress_at(progress, spec.get("progressDeadlineSeconds", 0) if stuck else 0),
        surges=spec.get("strategy", {}).get("rollingUpdate", {}).get("maxSurge") != 0,
    )


def _progress_at(progress: Mapping[str, Any], exceeded: int) -> float | None:
    """Returns the time of the last progress, seconds since the epoch.

    Args:
        exceeded: seconds without progress after which the condition was last written.
    """
    written = progress.get("lastUpdateTime")
    return None if not written else datetime.fromisoformat(written).timestamp() - exceeded

"""The operator's decisions on a simulated fleet: the real `decide`, with snapshots of simulated pods."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from inflight_base.manifest import Manifest
from inflight_gateway.state.load import line
from inflight_operator.api.types import InferenceService
from inflight_operator.decide.status.sentences import change_text, sentence
from inflight_operator.observe.gateway_lines import read_line
from inflight_operator.observe.gateway_view import GatewayView, gateway_view
from inflight_operator.observe.pods import LimitsPush, PodView
from inflight_operator.observe.window import Window
from inflight_operator.reconcile.decide import decide
from inflight_operator.reconcile.memory import Memory, first_memory
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.policy import policy_of
from inflight_operator.reconcile.snapshot import Snapshot, fresh_samples
from inflight_operator.render.plan import Settings
from inflight_settings.limits import LimitsInForce
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.control import scraped
from inflight_simulator.fleet.fleet import Fleet
from inflight_simulator.fleet.gateway import SERVICE, Gateway
from inflight_simulator.fleet.replicas.pods import Pod
from inflight_simulator.fleet.service import manifest_of

INTERVAL_S = 3.0
"""Seconds between two rounds of the operator, and two scrapes of a pod: its default."""
_STALE_AFTER_S = 2 * INTERVAL_S + 4
_SPAN_S = 30.0

_START = datetime(2026, 1, 5, tzinfo=UTC)
"""Second 0 of a simulation by the calendar: a Monday."""
_IMAGE = "engine:simulated"
_ADMIN_PORT = 9000
_GATEWAY = "inflight-gateway.inflight-system.svc.cluster.local"


def service_of(config: FleetConfig) -> InferenceService:
    """Returns the service as the operator reads it."""
    return InferenceService.from_dict(manifest_of(config))


class Autopilot:
    """A controller that runs the operator's rounds, at their interval.

    Args:
        scales: order the replicas that the operator asks for; if false, only its limits are used.

    Attributes:
        decisions: texts of the decisions, with the time.
    """

    def __init__(self, config: FleetConfig, *, scales: bool = True) -> None:
        self.interval_s = INTERVAL_S
        self.decisions: list[str] = []
        self._scales = scales
        self._pooled = config.routing in ("least-work", "gateway")
        self._service = service_of(config)
        self._settings = Settings(engine_image=_IMAGE, gateway_service=_GATEWAY)
        self._policy = policy_of(self._service, self._settings)
        self._window = Window(_SPAN_S)
        self._pushes: dict[str, LimitsPush] = {}
        self._deployment: Manifest | None = None
        first = first_memory(self._service, self._policy, config.initial_replicas, 0.0, _START)
        self._memory: Memory = replace(first, limits=LimitsInForce(config.limits, 1))

    def update(self, fleet: Fleet, now: float) -> None:
        """Runs a round."""
        snapshot = self._snapshot(fleet, now)
        plan = decide(snapshot, replace(self._memory, replicas=fleet.ordered))
        self._memory = plan.memory
        replicas = plan.replicas if self._scales else fleet.ordered
        for decision in plan.decisions:
            if self._scales or decision.kind != "Scaling":
                self.decisions.append(f"{now:8.1f} s  {change_text(decision)}: {sentence(decision.reason)}")
        self._push_limits(fleet, plan, now)
        self._deployment = _live(plan, replicas) or self._deployment
        for pod in fleet.live:
            pod.deletion_cost = plan.deletion_costs.get(pod.name, pod.deletion_cost)
        fleet.order(replicas, now, _removal_order)

    def _snapshot(self, fleet: Fleet, now: float) -> Snapshot:
        pods = tuple(_view(pod, fleet.config, now) for pod in fleet.live)
        samples = {pod.name: scraped(pod, fleet.config, now) for pod in fleet.live if pod.routable}
        # As in the operator: state of pods that no longer take requests is dropped.
        self._window = self._window.with_samples(samples, samples, now)
        self._pushes = {uid: push for uid, push in self._pushes.items() if uid in samples}
        return Snapshot(
            service=self._service,
            policy=self._policy,
            settings=self._settings,
            now=now,
            at=_START + timedelta(seconds=now),
            pods=pods,
            deployment=self._deployment,
            listed=frozenset(samples),
            window=self._window,
            fresh=fresh_samples(self._window, pods, now, _STALE_AFTER_S),
            pushes=self._pushes,
            pooled=self._pooled,
            gateway=None if fleet.gateway is None else _gateway(fleet.gateway, now),
        )

    def _push_limits(self, fleet: Fleet, plan: Plan, now: float) -> None:
        by_name = {pod.name: pod for pod in fleet.live}
        for view, limits in plan.push:
            fleet.set_limits(by_name[view.uid], limits, now)
            self._pushes[view.uid] = LimitsPush(accepted=limits, at=now)
        # Pods read the limits in force when they start.
        fleet.first_limits = plan.limits


def _gateway(gateway: Gateway, now: float) -> GatewayView:
    """Returns the view from the lines that the gateway's pods write, which come several times a second."""
    reports = {}
    for pod, load in gateway.loads().items():
        _, services = read_line(line(pod, {SERVICE: load}, full=True), now, gateway.begin)
        reports[pod] = services[SERVICE]
    return gateway_view(reports, len(reports), now)


def _view(pod: Pod, config: FleetConfig, now: float) -> PodView:
    """Returns the pod as Kubernetes shows it: Ready before the Service lists it, which is when `pod.ready` is set."""
    epoch, phases = _START.timestamp(), config.start_up
    scheduled_s = pod.created_s + phases.scheduled
    running_s, ready_s = scheduled_s + phases.image, pod.starts_s - phases.endpoints
    ready = ready_s <= now
    return PodView(
        name=pod.name,
        uid=pod.name,
        ip="10.0.0.1",
        node="node" if scheduled_s <= now else "",
        ready=ready,
        deleting=pod.draining,
        image=_IMAGE,
        scheduled_since=epoch + scheduled_s if scheduled_s <= now else None,
        running_since=epoch + running_s if running_s <= now else None,
        ready_since=epoch + ready_s if ready else None,
        unready_since=None if ready else epoch + pod.created_s,
        metrics_port=_ADMIN_PORT,
        admin_port=_ADMIN_PORT,
        deletion_cost=pod.deletion_cost,
        created=epoch + pod.created_s,
    )


def _removal_order(pod: Pod) -> tuple[bool, int, float, int]:
    """Returns the order in which a ReplicaSet removes pods: unready ones, lowest deletion cost, newest."""
    return pod.ready, pod.deletion_cost, -pod.starts_s, -pod.number


def _live(plan: Plan, replicas: int) -> dict[str, Any] | None:
    """The Deployment that the plan wants, as the API server would have it right after."""
    wanted = next((child for child in plan.children if child["kind"] == "Deployment"), None)
    if wanted is None:
        return None
    return {
        **wanted,
        "metadata": {**wanted["metadata"], "generation": 1},
        "spec": {**wanted["spec"], "replicas": replicas},
        "status": {"observedGeneration": 1, "replicas": replicas, "updatedReplicas": replicas},
    }

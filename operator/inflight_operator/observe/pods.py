"""The decisions' view of a pod, built from the pod object of the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from inflight_base.manifest.engines import EngineType, engine_type_of_pod
from inflight_base.manifest.names import (
    ADMIN_PORT_NAME,
    DELETION_COST,
    ENGINE_PORT,
    HTTP_PORT_NAME,
    METRICS_PORT_NAME,
)
from inflight_base.manifest.pods import blocking_init_container, condition, engine_container
from inflight_base.manifest.slices import address_of
from inflight_contract.model_version import rollout_of
from inflight_settings.limits import LimitsInForce


@dataclass(frozen=True, slots=True)
class LimitsPush:
    """Result of pushing limits to one engine.

    Attributes:
        accepted: the last accepted limits; None before the first.
        at: time of that, on the steady clock.
        error: the engine's reason to reject the last push; empty if it accepted.
        retry_at: time of the next attempt after a failure, on the steady clock.
    """

    accepted: LimitsInForce | None = None
    at: float = float("-inf")
    error: str = ""
    retry_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a service.

    Attributes:
        uid: uid of the pod; a replacement under the same name has another one.
        ip: IP address; empty until the pod has one.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        deleting: a deletion is under way; it is no longer capacity.
        restarts: restarts of the engine container.
        image: image of the engine container, or of an init container that fails: the fields on its container are those
            of that one then.
        init_container: name of the init container that fails; empty without one.
        waiting_reason, waiting_message: why its container is not running (`ImagePullBackOff`, `CrashLoopBackOff`).
        last_reason, last_message, exit_code: details of the container's last termination, if any.
        unschedulable: the scheduler's message while no node fits, else empty.
        gates: names of the scheduling gates that hold it back, such as that of a queue.
        failure: why a pod in phase Failed failed (evicted, for example), else empty.
        unready_since: when it was last found not ready, seconds since the epoch; None while it is ready.
        scheduled_since: when it got its node, seconds since the epoch; None while it has none.
        running_since: when its container started, seconds since the epoch; None while it does not run.
        last_run: seconds that its container ran before its last termination; None without one.
        ready_since: when it became ready, seconds since the epoch; None while it is not.
        metrics_port: port of /metrics.
        admin_port: port that accepts limits; None for an engine without one.
        deletion_cost: `controller.kubernetes.io/pod-deletion-cost`; 0 if unset, as in Kubernetes.
        created: time of creation, seconds since the epoch.
        engine: facts about its engine, which another type of the service does not change.
    """

    name: str
    uid: str
    ip: str
    node: str
    ready: bool
    metrics_port: int
    admin_port: int | None
    created: float
    phase: str = "Running"
    deleting: bool = False
    restarts: int = 0
    image: str = ""
    waiting_reason: str = ""
    waiting_message: str = ""
    last_reason: str = ""
    last_message: str = ""
    exit_code: int | None = None
    unschedulable: str = ""
    failure: str = ""
    scheduled_since: float | None = None
    running_since: float | None = None
    last_run: float | None = None
    ready_since: float | None = None
    unready_since: float | None = None
    deletion_cost: int = 0
    engine: EngineType = field(default_factory=EngineType)
    init_container: str = ""
    gates: tuple[str, ...] = ()

    @property
    def serves(self) -> bool:
        """True if the pod is ready and not terminating."""
        return self.ready and not self.deleting and bool(self.ip)

    @property
    def rollout(self) -> str:
        """Returns the name of its rollout, as its engine knows it."""
        return rollout_of(self.name)

    def url(self, port: int) -> str:
        """Returns `http://IP:PORT`, with brackets around an IPv6 address."""
        return f"http://{address_of(self.ip, port)}"


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """Returns the view of `pod`, a v1 Pod as the API returns it in JSON."""
    metadata, spec, status = pod.get("metadata", {}), pod.get("spec", {}), pod.get("status", {})
    engine = engine_container(status.get("containerStatuses", []))
    failed = blocking_init_container(status)
    container = failed or engine
    declared = engine_container(spec.get("containers", []))
    ports = {one.get("name"): one.get("containerPort") for one in declared.get("ports", [])}
    ready, scheduled = condition(status, "Ready"), condition(status, "PodScheduled")
    waiting, running = (container.get("state", {}).get(state, {}) for state in ("waiting", "running"))
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    return PodView(
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        ip=status.get("podIP", ""),
        node=spec.get("nodeName", ""),
        phase=status.get("phase", "Unknown"),
        ready=ready.get("status") == "True",
        deleting="deletionTimestamp" in metadata,
        restarts=container.get("restartCount", 0),
        image=(failed or declared).get("image", ""),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        last_reason=ended.get("reason", ""),
        last_message=ended.get("message", ""),
        exit_code=ended.get("exitCode"),
        unschedulable=_unschedulable(status),
        failure=status.get("message", "") if status.get("phase") == "Failed" else "",
        scheduled_since=_moment(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        running_since=_moment(running.get("startedAt")),
        last_run=_duration(ended),
        ready_since=_moment(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None,
        unready_since=_moment(ready.get("lastTransitionTime")) if ready.get("status") != "True" else None,
        metrics_port=ports.get(METRICS_PORT_NAME)
        or ports.get(ADMIN_PORT_NAME)
        or ports.get(HTTP_PORT_NAME)
        or ENGINE_PORT,
        admin_port=ports.get(ADMIN_PORT_NAME),
        deletion_cost=_number(metadata.get("annotations", {}).get(DELETION_COST, "0")),
        created=_moment(metadata.get("creationTimestamp")) or 0.0,
        engine=engine_type_of_pod(metadata),
        init_container=failed.get("name", ""),
        gates=tuple(str(gate.get("name", "")) for gate in spec.get("schedulingGates") or ()),
    )


def _unschedulable(status: Mapping[str, Any]) -> str:
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return str(scheduled.get("message", "no node fits"))
    return ""


def _number(text: str) -> int:
    """Returns the number; 0 for a value that Kubernetes rejects, which an older version may have stored."""
    try:
        return int(text)
    except ValueError:
        return 0


def _moment(timestamp: str | None) -> float | None:
    """Returns the time as seconds since the epoch."""
    return None if not timestamp else datetime.fromisoformat(timestamp).timestamp()


def _duration(ended: Mapping[str, Any]) -> float | None:
    start, end = _moment(ended.get("startedAt")), _moment(ended.get("finishedAt"))
    return None if start is None or end is None else end - start

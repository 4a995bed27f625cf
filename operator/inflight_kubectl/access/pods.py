"""The commands' view of an engine's pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inflight_base.manifest.engines import EngineType, engine_type_of_pod
from inflight_base.manifest.names import ADMIN_PORT_NAME, ENGINE_PORT, HTTP_PORT_NAME
from inflight_base.manifest.pods import blocking_init_container, condition, engine_container


@dataclass(frozen=True, slots=True)
class Pod:
    """Attributes:
    ready: True if it takes requests.
    deleting: True while it is being removed.
    state: state in one word, as in `kubectl get pods`: Running, Pending, ImagePullBackOff, Terminating, ...
    detail: reason why it is not ready, from Kubernetes; empty if ready or unknown.
    http_port: port of the OpenAI API.
    admin_port: port for admin calls; None for an engine without one.
    started: time when its container started.
    engine: facts about its engine, which another type of the service does not change.
    """

    name: str
    namespace: str
    uid: str
    node: str
    ready: bool
    deleting: bool
    state: str
    detail: str
    restarts: int
    image: str
    http_port: int
    admin_port: int | None
    created: datetime | None
    started: datetime | None
    engine: EngineType

    @property
    def serves(self) -> bool:
        """True if the pod is ready and not terminating."""
        return self.ready and not self.deleting

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Pod:
        """Reads a v1 Pod as the API returns it in JSON."""
        metadata, spec, status = body["metadata"], body.get("spec", {}), body.get("status", {})
        declared = engine_container(spec.get("containers", []))
        container = blocking_init_container(status) or engine_container(status.get("containerStatuses", []))
        ports = {one.get("name"): one.get("containerPort") for one in declared.get("ports", [])}
        ready = condition(status, "Ready").get("status") == "True"
        deleting = "deletionTimestamp" in metadata
        state, detail = _state(status, container, ready=ready, deleting=deleting)
        return cls(
            name=metadata["name"],
            namespace=metadata.get("namespace", ""),
            uid=metadata.get("uid", ""),
            node=spec.get("nodeName", ""),
            ready=ready,
            deleting=deleting,
            state=state,
            detail=detail,
            restarts=container.get("restartCount", 0),
            image=declared.get("image", ""),
            http_port=ports.get(HTTP_PORT_NAME) or ENGINE_PORT,
            admin_port=ports.get(ADMIN_PORT_NAME),
            created=moment(metadata.get("creationTimestamp")),
            started=moment(container.get("state", {}).get("running", {}).get("startedAt")),
            engine=engine_type_of_pod(metadata),
        )


def moment(text: str | None) -> datetime | None:
    """Returns a time of the Kubernetes API; None if there is none."""
    return datetime.fromisoformat(text) if text else None


def _state(status: Mapping[str, Any], container: Mapping[str, Any], *, ready: bool, deleting: bool) -> tuple[str, str]:
    scheduled = condition(status, "PodScheduled")
    waiting = container.get("state", {}).get("waiting", {})
    ended = container.get("state", {}).get("terminated") or {}
    if deleting:
        return "Terminating", ""
    if ready:
        return "Running", ""
    if scheduled.get("status") == "False":
        return "Pending", str(scheduled.get("message", "no node fits"))
    if waiting.get("reason"):
        last = container.get("lastState", {}).get("terminated") or {}
        return waiting["reason"], _words(waiting.get("message", ""), last)
    if ended:
        return ended.get("reason", "Error"), _words("", ended)
    if status.get("phase") == "Failed":
        return status.get("reason") or "Failed", status.get("message", "")
    if container.get("state", {}).get("running"):
        return "Starting", "the engine loads its model"
    return status.get("phase", "Unknown"), ""


def _words(message: str, ended: Mapping[str, Any]) -> str:
    """Returns the status message of a container that does not run, and its own last log line."""
    said = [" ".join(message.split())] if message else []
    if ended:
        lines = [line for line in str(ended.get("message", "")).splitlines() if line.strip()]
        last = f": {lines[-1].strip()}" if lines else ""
        said.append(f"last exit code {ended.get('exitCode', '?')} ({ended.get('reason', 'Error')}){last}")
    return "; ".join(said)

"""Kubernetes events about a service's pods and its Deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.access.pods import Pod, moment
from inflight_kubectl.access.resources import Service


@dataclass(frozen=True, slots=True)
class Event:
    """Attributes:
    warning: True if its type is Warning.
    about: kind and name of its object.
    at: time when it was last seen.
    """

    warning: bool
    reason: str
    message: str
    about: tuple[str, str]
    at: datetime | None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Event:
        """Reads a v1 Event, whichever API wrote it."""
        series, about = body.get("series") or {}, body.get("involvedObject") or body.get("regarding") or {}
        seen = series.get("lastObservedTime") or body.get("lastTimestamp") or body.get("eventTime")
        return cls(
            warning=body.get("type") == "Warning",
            reason=body.get("reason", ""),
            message=" ".join(str(body.get("message") or body.get("note") or "").split()),
            about=(about.get("kind", ""), about.get("name", "")),
            at=moment(seen or body.get("metadata", {}).get("creationTimestamp")),
        )


def pod_events(cluster: Cluster, service: Service, pods: Sequence[Pod]) -> list[Event]:
    """Returns the events about the existing pods, newest last.

    Raises:
        Problem: forbidden, or no answer.
    """
    names = {pod.name for pod in pods}
    path = f"/api/v1/namespaces/{service.namespace}/events"
    found = [Event.of(item) for item in cluster.list(path, fieldSelector="involvedObject.kind=Pod")["items"]]
    mine = [one for one in found if one.about[1] in names]
    return sorted(mine, key=lambda one: one.at.timestamp() if one.at else 0.0)

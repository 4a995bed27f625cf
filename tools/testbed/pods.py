"""Pods in the chosen cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tools.localcluster import kubectl


@dataclass(frozen=True)
class Pod:
    """State of a pod. With the same uid and no more restarts later, its processes are the same.

    Attributes:
        address: its IP; empty before it has one.
        node: its node; empty before it is scheduled.
        leaving: it is being deleted.
        restarts: restarts of all its containers, sidecars excluded.
    """

    name: str
    uid: str
    address: str
    node: str
    ready: bool
    leaving: bool
    restarts: int


def pods(namespace: str, selector: str) -> list[Pod]:
    """Returns pods by name, pods that are being deleted included. Args: selector: label selector."""
    listing = json.loads(kubectl("-n", namespace, "get", "pods", "-l", selector, "-o", "json"))
    return sorted((_pod(one) for one in listing["items"]), key=lambda pod: pod.name)


def _pod(manifest: dict[str, Any]) -> Pod:
    status = manifest.get("status", {})
    return Pod(
        name=manifest["metadata"]["name"],
        uid=manifest["metadata"]["uid"],
        address=status.get("podIP", ""),
        node=manifest["spec"].get("nodeName", ""),
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()),
        leaving="deletionTimestamp" in manifest["metadata"],
        restarts=sum(container["restartCount"] for container in status.get("containerStatuses") or ()),
    )

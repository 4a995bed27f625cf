"""Parts of a v1 Pod, as the API returns it in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import ENGINE_CONTAINER


def engine_container(containers: Sequence[Manifest]) -> Manifest:
    """The engine among a pod's containers, or among their statuses; empty where there are none yet."""
    named = [one for one in containers if one.get("name") == ENGINE_CONTAINER]
    return next(iter(named or containers), {})


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition in a status; empty without it."""
    return next((one for one in status.get("conditions") or () if one.get("type") == kind), {})


def blocking_init_container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the status of the init container that fails and so keeps the engine from starting; empty if none does."""
    engine = engine_container(status.get("containerStatuses", [])).get("state", {})
    if engine and engine.get("waiting", {}).get("reason") != "PodInitializing":
        return {}
    for one in status.get("initContainerStatuses", []):
        state = one.get("state", {})
        reason = state.get("waiting", {}).get("reason", "")
        if reason not in ("", "PodInitializing", "ContainerCreating") or state.get("terminated", {}).get("exitCode"):
            return dict(one)
    return {}

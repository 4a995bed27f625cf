"""Gateways in front of a service, as they report themselves in the status of its InferencePool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_COMPLAINT = 200
"""Maximum characters of a message in the status."""

_USED = ("Accepted", "ResolvedRefs")
"""Conditions of a parent that, if False, mean that it does not use the pool (inference.networking.k8s.io/v1,
InferencePoolConditionType). `Exported` concerns other clusters."""


@dataclass(frozen=True, slots=True)
class PoolParent:
    """An object that uses the pool, mostly a Gateway.

    Attributes:
        name: `KIND NAMESPACE/NAME`.
        complaint: why it does not use the pool; empty if it does.
    """

    name: str
    complaint: str = ""


def pool_parents(pool: Mapping[str, Any] | None) -> tuple[PoolParent, ...]:
    """Returns the parents in the status of an InferencePool (inference.networking.k8s.io/v1), in its order; None has
    none."""
    if pool is None:
        return ()
    parents = (pool.get("status") or {}).get("parents") or ()
    return tuple(_parent(one, pool["metadata"]["namespace"]) for one in parents)


def _parent(status: Mapping[str, Any], namespace: str) -> PoolParent:
    ref = status.get("parentRef") or {}
    name = f"{ref.get('kind') or 'Gateway'} {ref.get('namespace') or namespace}/{ref.get('name', '')}"
    conditions = status.get("conditions") or ()
    refused = (one for one in conditions if one.get("type") in _USED and one.get("status") == "False")
    complaint = next((f"{one.get('reason', '')}: {one.get('message', '')}" for one in refused), "")
    return PoolParent(name, complaint[:MAX_COMPLAINT])

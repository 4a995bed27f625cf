"""Which pod a scale-down takes: the emptiest and coldest, said through `controller.kubernetes.io/pod-deletion-cost`.

Kubernetes deletes pods with a lower cost first (documentation, "ReplicaSet", Pod deletion cost); it does so on its own
for pods that are not ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inflight_operator.decide.scaling import PodLoad
from inflight_operator.observe.pods import PodView

REQUEST_COST = 1000
"""One request in a pod outweighs any difference in age."""

UNKNOWN_COST = 1_000_000
"""A ready pod that does not tell its load may be full: it goes last."""


def deletion_costs(pods: Sequence[PodView], loads: Mapping[str, PodLoad], now: float) -> dict[str, int]:
    """Costs to set, by pod name: only those that differ from what the pods carry now.

    Args:
        pods: all pods of the service.
        loads: by pod uid.
        now: seconds since the epoch.
    """
    wanted = {pod.name: _cost(pod, loads.get(pod.uid), now) for pod in pods if pod.ready and not pod.deleting}
    carried = {pod.name: pod.deletion_cost for pod in pods}
    return {name: cost for name, cost in wanted.items() if carried[name] != cost}


def _cost(pod: PodView, load: PodLoad | None, now: float) -> int:
    if load is None:
        return UNKNOWN_COST
    # Older pods have warmer caches: hours of life break ties between equally loaded ones.
    hours = min(int(pod.age(now) // 3600), REQUEST_COST - 1)
    return (load.running + load.waiting) * REQUEST_COST + hours

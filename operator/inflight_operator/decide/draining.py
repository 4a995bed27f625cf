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


def deletion_costs(pods: Sequence[PodView], loads: Mapping[str, PodLoad]) -> dict[str, int]:
    """Costs to set, by pod name: only those that differ from what the pods carry now.

    Args:
        pods: all pods of the service.
        loads: by pod uid.
    """
    # Older pods have warmer caches: the order of age breaks ties between equally loaded ones.
    youngest_first = sorted((pod for pod in pods if pod.ready and not pod.deleting), key=lambda pod: -pod.created)
    wanted = {pod.name: _cost(loads.get(pod.uid), rank) for rank, pod in enumerate(youngest_first)}
    carried = {pod.name: pod.deletion_cost for pod in pods}
    return {name: cost for name, cost in wanted.items() if carried[name] != cost}


def _cost(load: PodLoad | None, rank: int) -> int:
    if load is None:
        return UNKNOWN_COST
    return (load.running + load.waiting) * REQUEST_COST + min(rank, REQUEST_COST - 1)

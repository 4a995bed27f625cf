"""Choice of the pod that a scale-down deletes: the pod with the least load and the coldest cache, set through
`controller.kubernetes.io/pod-deletion-cost`.

Kubernetes deletes pods with a lower cost first (documentation, "ReplicaSet", Pod deletion cost); it deletes pods that
are not ready first without that annotation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from inflight_operator.observe.metrics import Sample
from inflight_operator.observe.pods import PodView

REQUEST_TOKENS = 1000
"""Tokens counted for a request in a pod that does not report its tokens."""

TOKENS_APART = 100
"""Pods whose requests hold about as many tokens are distinguished by the warmth of their prefix caches, then by age."""

RANKS = 1000
"""Any difference in tokens outweighs all ranks of warmth and age."""

UNKNOWN_COST = 2**31 - 1
"""A ready pod that does not report its load may be full: it is deleted last. The largest cost that Kubernetes
accepts."""


def deletion_costs(pods: Sequence[PodView], loads: Mapping[str, Sample], leaving: int | None = None) -> dict[str, int]:
    """Costs to set, by pod name: only those that differ from the current annotations.

    Args:
        pods: all pods of the service.
        loads: load of each pod, by uid.
        leaving: number of pods to be removed; these alone get a cost, below 0, and of the others only those that have
            such a cost. None: all get one, as it is not known which of them Kubernetes chooses from.
    """
    serving = [pod for pod in pods if pod.ready and not pod.deleting]
    coldest_first = sorted(serving, key=lambda pod: (_warmth(loads.get(pod.uid)), -pod.created))
    wanted = {pod.name: _cost(loads.get(pod.uid), rank) for rank, pod in enumerate(coldest_first)}
    carried = {pod.name: pod.deletion_cost for pod in pods}
    if leaving is not None:
        chosen = sorted(wanted, key=wanted.__getitem__)[:leaving]
        stay = {name: max(0, carried[name]) for name in wanted}
        wanted = stay | {name: rank - len(chosen) for rank, name in enumerate(chosen)}
    return {name: cost for name, cost in wanted.items() if carried[name] != cost}


def _warmth(load: Sample | None) -> float:
    """Returns the warmth in steps of a tenth: smaller differences are noise, and an older pod's cache is the warmer
    one."""
    return 0.0 if load is None else round(load.warmth, 1)


def _cost(load: Sample | None, rank: int) -> int:
    if load is None:
        return UNKNOWN_COST
    requests = load.running + load.waiting
    tokens = load.request_tokens if load.request_tokens is not None else requests * REQUEST_TOKENS
    # A request that was just taken holds no tokens yet.
    emptiness = max(requests, math.ceil(tokens / TOKENS_APART)) if requests else 0
    return min(emptiness * RANKS + min(rank, RANKS - 1), UNKNOWN_COST - 1)

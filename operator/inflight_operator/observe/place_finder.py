"""Finds the places that models are fetched to: nodes by their labels, or the claim of the model cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inflight_base.kube.client import KubeApi
from inflight_base.kube.errors import KubeApiError
from inflight_base.kube.kinds import Selection
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import selector_string
from inflight_operator.api.status import MAX_PLACES
from inflight_operator.clock import Clock
from inflight_operator.observe.prefetch_view import Places

FIND_SECONDS = 60.0
"""Seconds for which a list of nodes is used: a node that joins is found after that."""

_WRITERS = "ReadWriteMany"


@dataclass(frozen=True, slots=True)
class Where:
    """Criteria of a search for places.

    Attributes:
        labels: labels of the nodes.
        tolerations: tolerations of the pods, as in `core/v1`.
        claim: claim that all nodes share; empty: each node has its own copy.
    """

    labels: Mapping[str, str]
    tolerations: Sequence[Manifest]
    claim: str = ""


@dataclass(slots=True)
class _Found:
    where: Where
    places: Places
    at: float


class PlaceFinder:
    """Only services that prefetch cause calls: nodes are not watched, as few installations need them."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._found: dict[ServiceKey, _Found] = {}

    async def find(self, key: ServiceKey, where: Where) -> Places:
        """Returns the places, at most `FIND_SECONDS` old; those found before while the API server does not answer."""
        before, now = self._found.get(key), self._clock.steady()
        if before is not None and before.where == where and now - before.at < FIND_SECONDS:
            return before.places
        try:
            places = await (self._claim(key, where) if where.claim else self._nodes(where))
        except KubeApiError as error:
            if before is not None and before.where == where and error.status not in (403, 404):
                places = before.places
            else:
                places = Places(obstacle="ClaimUnknown" if where.claim else "NodesUnknown", said=str(error))
        self._found[key] = _Found(where, places, now)
        return places

    def forget(self, key: ServiceKey) -> None:
        self._found.pop(key, None)

    async def _claim(self, key: ServiceKey, where: Where) -> Places:
        claim = await self._api.get("PersistentVolumeClaim", key.namespace, where.claim)
        if claim is None:
            return Places(obstacle="NoClaim", said=where.claim)
        if _WRITERS not in claim["spec"].get("accessModes", ()):
            return Places(obstacle="ClaimOfOneNode", said=where.claim)
        return Places((where.claim,), shared=True)

    async def _nodes(self, where: Where) -> Places:
        nodes = await self._api.list(Selection("Node", labels=selector_string(where.labels)))
        names = sorted(node["metadata"]["name"] for node in nodes if _admits(node, where.tolerations))
        if not names:
            return Places(obstacle="NoNode")
        if len(names) > MAX_PLACES:
            return Places(obstacle="TooManyNodes", said=str(len(names)))
        return Places(tuple(names))


def _admits(node: Mapping[str, Any], tolerations: Sequence[Manifest]) -> bool:
    """Returns True if the pods tolerate all taints of a node that keep pods away: nodes that are cordoned or not ready
    have such taints."""
    taints = [taint for taint in node["spec"].get("taints") or () if taint.get("effect") != "PreferNoSchedule"]
    return "deletionTimestamp" not in node["metadata"] and all(
        any(_tolerates(one, taint) for one in tolerations) for taint in taints
    )


def _tolerates(toleration: Manifest, taint: Mapping[str, Any]) -> bool:
    """Returns True if the toleration matches the taint, by the rules of `core/v1`; the scheduler compares numbers."""
    if toleration.get("effect") not in (None, taint.get("effect")):
        return False
    operator = toleration.get("operator") or "Equal"
    if not toleration.get("key"):
        return operator == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    return operator != "Equal" or (toleration.get("value") or "") == (taint.get("value") or "")

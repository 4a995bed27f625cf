"""The cluster as last seen: services, their children and pods, kept fresh by watch events, so that a round of the loop
makes no LIST.

Events can be missed (a watch that was cut does not tell what was deleted meanwhile), so the whole is listed at the
start and now and then; `begin_listing` and `replace` keep what events told while the list was under way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from inflight_operator.api.types import KIND
from inflight_operator.observe.pods import PodView, pod_view
from inflight_operator.render.labels import SERVICE_LABEL

Manifest = dict[str, Any]


class ServiceKey(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class _ObjectKey(NamedTuple):
    kind: str
    namespace: str
    name: str


class ClusterCache:
    """Objects by service. Single-threaded: everything happens in the event loop."""

    def __init__(self) -> None:
        self._services: dict[ServiceKey, Manifest] = {}
        self._children: dict[ServiceKey, dict[_ObjectKey, Manifest]] = defaultdict(dict)
        self._pods: dict[ServiceKey, dict[_ObjectKey, PodView]] = defaultdict(dict)
        self._touched: set[_ObjectKey] = set()

    def services(self) -> list[ServiceKey]:
        return list(self._services)

    def service(self, key: ServiceKey) -> Manifest | None:
        """The InferenceService as the API gives it; None when it does not exist (any more)."""
        return self._services.get(key)

    def children(self, key: ServiceKey) -> list[Manifest]:
        """All children but pods."""
        return list(self._children.get(key, {}).values())

    def child(self, key: ServiceKey, kind: str, name: str) -> Manifest | None:
        return self._children.get(key, {}).get(_ObjectKey(kind, key.namespace, name))

    def pods(self, key: ServiceKey) -> list[PodView]:
        """By name, those on their way out included."""
        return sorted(self._pods.get(key, {}).values(), key=lambda pod: pod.name)

    def put(self, kind: str, body: Mapping[str, Any]) -> ServiceKey | None:
        """Takes in an object of a watch event. Returns the service that has to be looked at for it, if any: a change
        in a service's status alone (the operator writes it) is no reason to look."""
        self._touched.add(_object_key(kind, body))
        return self._put(kind, body)

    def remove(self, kind: str, body: Mapping[str, Any]) -> ServiceKey | None:
        """Takes out a deleted object. Returns the service that has to be looked at for it."""
        self._touched.add(_object_key(kind, body))
        return self._remove(_object_key(kind, body), _owner(kind, body))

    def status_written(self, key: ServiceKey, status: Manifest) -> None:
        """Takes in a status that was written just now, ahead of its watch event."""
        if key in self._services:
            self._services[key] = {**self._services[key], "status": status}

    def begin_listing(self) -> None:
        """Call before a list of the whole is requested."""
        self._touched.clear()

    def replace(self, kind: str, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Takes a whole list of one kind; objects that events touched since `begin_listing` stay as events told."""
        listed = {_object_key(kind, body): body for body in bodies}
        for known, owner in self._known(kind):
            if known not in listed and known not in self._touched:
                self._remove(known, owner)
        for key, body in listed.items():
            if key not in self._touched:
                self._put(kind, body)

    def _known(self, kind: str) -> list[tuple[_ObjectKey, ServiceKey]]:
        if kind == KIND:
            return [(_ObjectKey(kind, *key), key) for key in self._services]
        held: Mapping[ServiceKey, Mapping[_ObjectKey, Any]] = self._pods if kind == "Pod" else self._children
        return [(key, owner) for owner, objects in held.items() for key in objects if key.kind == kind]

    def _put(self, kind: str, body: Mapping[str, Any]) -> ServiceKey | None:
        owner = _owner(kind, body)
        if owner is None:
            return None
        key = _object_key(kind, body)
        if kind == KIND:
            before = self._services.get(owner)
            self._services[owner] = dict(body)
            return owner if before is None or _wants(before) != _wants(body) else None
        if kind == "Pod":
            view = pod_view(body)
            changed = self._pods[owner].get(key) != view
            self._pods[owner][key] = view
            return owner if changed else None
        self._children[owner][key] = {"kind": kind, **body}
        return owner

    def _remove(self, key: _ObjectKey, owner: ServiceKey | None) -> ServiceKey | None:
        if owner is None:
            return None
        if key.kind == KIND:
            self._services.pop(owner, None)
            return owner
        held: dict[ServiceKey, dict[_ObjectKey, Any]] = self._pods if key.kind == "Pod" else self._children
        objects = held.get(owner, {})
        objects.pop(key, None)
        if not objects:
            held.pop(owner, None)
        return owner


def _object_key(kind: str, body: Mapping[str, Any]) -> _ObjectKey:
    return _ObjectKey(kind, body["metadata"]["namespace"], body["metadata"]["name"])


def _owner(kind: str, body: Mapping[str, Any]) -> ServiceKey | None:
    metadata = body["metadata"]
    name = metadata["name"] if kind == KIND else metadata.get("labels", {}).get(SERVICE_LABEL)
    return ServiceKey(metadata["namespace"], name) if name else None


def _wants(body: Mapping[str, Any]) -> tuple[Any, ...]:
    metadata = body["metadata"]
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp")

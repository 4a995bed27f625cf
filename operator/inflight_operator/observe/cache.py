"""Cache of the cluster: services with their children, pods and ready endpoints, so that a round makes no LIST.

Watch events, pages of lists and answers to writes arrive late, twice and out of order: kopf handles each object in a
task of its own, and events arrive during a list. The newest resourceVersion wins. Within one resource type
resourceVersions are integers that only grow, across names and namespaces (documented since Kubernetes 1.35, KEP-5504
"Comparable Resource Version"; the API server has always done so). An object whose version cannot be parsed is accepted
in order of arrival.

A deletion leaves a tombstone, so that a late event or an older list does not bring the object back. A list makes all
tombstones up to its own version superfluous: from then on any event that is not newer than the list is stale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

from inflight_base.kube.difference import packed_fields
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import FIELD_MANAGER, KIND, SERVICE_LABEL, SLICE_OF_LABEL, child_names
from inflight_base.manifest.slices import endpoints
from inflight_operator.observe.pods import PodView, pod_view

POD, ENDPOINTS = "Pod", "EndpointSlice"

TEMPLATE_HASH_LABEL = "pod-template-hash"

MOST_TOMBSTONES = 10_000
"""For one kind, between two lists; the oldest goes first."""


_LONGEST_SHARED = 64
"""Characters; longer strings are seldom the same in two objects."""


_Name = tuple[str, str]
"""Namespace and name of an object."""


@dataclass(frozen=True, slots=True)
class _Held:
    """One object: `value` is a PodView for a pod, the uids of ready pods for an EndpointSlice of the engines, else the
    manifest."""

    uid: str
    version: int | None
    owner: ServiceKey
    value: Any


class ClusterCache:
    """Objects by service. Single-threaded: runs in the event loop."""

    def __init__(self) -> None:
        self._held: dict[str, dict[_Name, _Held]] = defaultdict(dict)
        self._owned: dict[ServiceKey, dict[tuple[str, str], _Held]] = {}
        self._tombstones: dict[str, dict[_Name, int]] = defaultdict(dict)
        self._listed: dict[tuple[str, str | None], int] = {}

    def services(self) -> list[ServiceKey]:
        return [held.owner for held in self._held[KIND].values()]

    def count(self) -> int:
        """The number of services."""
        return len(self._held[KIND])

    def service(self, key: ServiceKey) -> Manifest | None:
        """The InferenceService as the API returns it, without managedFields; None if it does not exist."""
        held = self._held[KIND].get((key.namespace, key.name))
        return None if held is None else held.value

    def children(self, key: ServiceKey) -> list[Manifest]:
        """All objects with the service's label, including those of another owner, except pods and EndpointSlices of the
        engines."""
        return [held.value for held in self._owned.get(key, {}).values() if isinstance(held.value, dict)]

    def child(self, key: ServiceKey, kind: str, name: str) -> Manifest | None:
        held = self._owned.get(key, {}).get((kind, name))
        return None if held is None else held.value

    def pods(self, key: ServiceKey) -> list[PodView]:
        """Pods of the service's Deployment by name, terminating ones included."""
        return sorted((one.value for one in self._of(key, POD)), key=lambda pod: pod.name)

    def endpoints(self, key: ServiceKey) -> frozenset[str]:
        """Uids of the pods that EndpointSlices of the service's Services list as ready."""
        slices = (one.value for one in self._of(key, ENDPOINTS))
        return frozenset().union(*(ready for ready in slices if isinstance(ready, frozenset)))

    def put(self, kind: str, body: Mapping[str, Any]) -> ServiceKey | None:
        """Stores an object from a watch event or a write response. Returns the service that needs a round for
        it, if any. A change in a service's status alone (the operator writes it) is no reason for one, nor is an
        object that is known already."""
        return self._put(kind, body, listed=False)

    def remove(self, kind: str, body: Mapping[str, Any]) -> ServiceKey | None:
        """Removes a deleted object. Returns the service that needs a round for it, if any."""
        name, version = _name(body), _version(body)
        held = self._held[kind].get(name)
        if held is not None:
            if version is None or held.version is None:
                if held.uid != body["metadata"].get("uid", ""):
                    return None
            elif version < held.version:
                return None
        return self._drop(kind, name, version)

    def listing(self, kind: str, namespace: str | None, version: str) -> Listing:
        """Stores a list of a kind (of one namespace, or of all), page by page.

        Args:
            version: the list's own resourceVersion.
        """
        return Listing(self, kind, namespace, _integer(version))

    def forget_kind(self, kind: str) -> None:
        """Removes all objects of a kind that the cluster no longer has."""
        for name in list(self._held[kind]):
            self._drop(kind, name, None)
        self._tombstones.pop(kind, None)
        self._listed = {scope: version for scope, version in self._listed.items() if scope[0] != kind}

    def _of(self, key: ServiceKey, kind: str) -> list[_Held]:
        return [held for (one, _), held in self._owned.get(key, {}).items() if one == kind]

    def _put(self, kind: str, body: Mapping[str, Any], *, listed: bool) -> ServiceKey | None:
        name, version = _name(body), _version(body)
        if self._is_stale(kind, name, version, listed=listed):
            return None
        owner = _owner(kind, body)
        if owner is None:
            return self._drop(kind, name, version)
        before = self._held[kind].get(name)
        after = _Held(body["metadata"].get("uid", ""), version, owner, _value(kind, body))
        ready = self.endpoints(owner) if isinstance(after.value, frozenset) else None
        self._tombstones[kind].pop(name, None)
        if before is not None and before.owner != owner:
            self._disown(kind, name, before.owner)
        self._held[kind][name] = after
        if kind != KIND:
            self._owned.setdefault(owner, {})[kind, name[1]] = after
        changed = _differs(kind, before, after) if ready is None else ready != self.endpoints(owner)
        return owner if changed else None

    def _is_stale(self, kind: str, name: _Name, version: int | None, *, listed: bool) -> bool:
        if version is None:
            return False
        held = self._held[kind].get(name)
        if held is not None:
            return held.version is not None and version < held.version
        gone = self._tombstones[kind].get(name)
        if gone is not None:
            return version <= gone
        return not listed and version <= self._newest_list(kind, name[0])

    def _newest_list(self, kind: str, namespace: str | None) -> int:
        return max(self._listed.get((kind, None), -1), self._listed.get((kind, namespace), -1))

    def _drop(self, kind: str, name: _Name, version: int | None) -> ServiceKey | None:
        """Removes an object, if it is cached; `version` is that of the deletion."""
        if version is not None and version > self._newest_list(kind, name[0]):
            tombstones = self._tombstones[kind]
            tombstones[name] = max(version, tombstones.pop(name, version))
            if len(tombstones) > MOST_TOMBSTONES:
                del tombstones[next(iter(tombstones))]
        held = self._held[kind].pop(name, None)
        if held is None:
            return None
        ready = self.endpoints(held.owner) if isinstance(held.value, frozenset) else None
        self._disown(kind, name, held.owner)
        return held.owner if ready is None or ready != self.endpoints(held.owner) else None

    def _disown(self, kind: str, name: _Name, owner: ServiceKey) -> None:
        owned = self._owned.get(owner, {})
        owned.pop((kind, name[1]), None)
        if not owned:
            self._owned.pop(owner, None)


class Listing:
    """One list in progress. Pages are stored as they arrive, so that no whole list is in memory.

    Attributes:
        outdated: a newer list was stored already, so this one is ignored.
    """

    def __init__(self, cache: ClusterCache, kind: str, namespace: str | None, version: int | None) -> None:
        self._cache = cache
        self._kind = kind
        self._namespace = namespace
        self._version = version
        self._names: set[_Name] = set()
        self.outdated = version is not None and version < cache._newest_list(kind, namespace)

    def add(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Stores a page."""
        if self.outdated:
            return
        held = self._cache._held[self._kind]
        for body in bodies:
            name, version = _name(body), _version(body)
            self._names.add(name)
            known = held.get(name)
            if known is None or version is None or known.version != version:  # most are unchanged
                self._cache._put(self._kind, body, listed=True)

    def end(self) -> None:
        """Removes objects that are not in the list and were not created after it."""
        if self.outdated:
            return
        cache, kind = self._cache, self._kind
        for name, held in list(cache._held[kind].items()):
            if self._covers(name) and name not in self._names and not self._is_before(held.version):
                cache._drop(kind, name, None)
        if self._version is not None:
            cache._listed[kind, self._namespace] = self._version
            cache._tombstones[kind] = {
                name: gone
                for name, gone in cache._tombstones[kind].items()
                if not self._covers(name) or self._is_before(gone)
            }

    def _covers(self, name: _Name) -> bool:
        return self._namespace is None or name[0] == self._namespace

    def _is_before(self, version: int | None) -> bool:
        return self._version is not None and version is not None and self._version < version


def _name(body: Mapping[str, Any]) -> _Name:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _version(body: Mapping[str, Any]) -> int | None:
    return _integer(body["metadata"].get("resourceVersion", ""))


def _integer(version: str) -> int | None:
    return int(version) if version.isascii() and version.isdigit() else None


def _owner(kind: str, body: Mapping[str, Any]) -> ServiceKey | None:
    """The service that an object belongs to; None without one."""
    namespace, name = _name(body)
    if kind == KIND:
        return ServiceKey(namespace, name)
    labels = body["metadata"].get("labels") or {}
    service = labels.get(SERVICE_LABEL)
    if not service:
        return None
    if kind == POD and not _is_replica(body, service):
        return None
    if kind == ENDPOINTS:
        names = child_names(service)
        if labels.get(SLICE_OF_LABEL) not in (service, names.engines, names.picker):
            return None
    return ServiceKey(namespace, service)


def _is_replica(pod: Mapping[str, Any], service: str) -> bool:
    """Whether the pod's controller is a ReplicaSet of the service's Deployment. Labels alone can be copied, as
    `kubectl debug --copy-to --keep-labels` does. A ReplicaSet is named after its Deployment and the template's hash."""
    metadata = pod["metadata"]
    replica_set = f"{service}-{metadata['labels'].get(TEMPLATE_HASH_LABEL, '')}"
    return any(
        owner.get("controller") and (owner.get("kind"), owner.get("name")) == ("ReplicaSet", replica_set)
        for owner in metadata.get("ownerReferences") or ()
    )


def _value(kind: str, body: Mapping[str, Any]) -> Any:
    """The cached parts of an object: only those that are read."""
    if kind == POD:
        return pod_view(body)
    if kind == ENDPOINTS and _is_of_engines(body):
        return _ready_pods(body)
    # Whether a child must be applied is read from what the operator applied last; see inflight_base.kube.difference.
    fields = [one for one in body["metadata"].get("managedFields") or () if one.get("manager") == FIELD_MANAGER]
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    if kind != KIND:
        metadata["managedFields"] = [packed_fields(one) for one in fields]
    return _shared({**body, "kind": kind, "metadata": metadata})


def _shared(value: Any) -> Any:
    """The same JSON value with one object for equal strings: thousands of objects repeat the same keys and names."""
    if isinstance(value, dict):
        return {intern(key): _shared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shared(item) for item in value]
    return intern(value) if isinstance(value, str) and len(value) <= _LONGEST_SHARED else value


def _is_of_engines(endpoint_slice: Mapping[str, Any]) -> bool:
    """Whether Kubernetes made the slice for a Service with the engines, and not the operator for a picker's Service."""
    labels = endpoint_slice["metadata"]["labels"]
    return bool(labels[SLICE_OF_LABEL] != child_names(labels[SERVICE_LABEL]).picker)


def _ready_pods(endpoint_slice: Mapping[str, Any]) -> frozenset[str]:
    """Uids of the pods of ready endpoints."""
    return frozenset(one.uid for one in endpoints(endpoint_slice) if one.ready and one.uid)


def _differs(kind: str, before: _Held | None, after: _Held) -> bool:
    """Whether a round may be needed."""
    if before is None or before.uid != after.uid:
        return True
    if kind == KIND:
        return _wants(before.value) != _wants(after.value)
    if kind == POD:
        return bool(before.value != after.value)
    return after.version is None or before.version != after.version


def _wants(body: Mapping[str, Any]) -> tuple[Any, ...]:
    metadata = body["metadata"]
    return metadata.get("generation"), metadata.get("deletionTimestamp")

"""Cache of the cluster: services with their children, pods and ready endpoints, so that a round makes no LIST.

One watch for each kind and namespace delivers all changes in their order. Answers to the operator's own writes come
beside it, before or after the event of the same change, so the newest resourceVersion wins. Within one resource type
resourceVersions are integers that only grow, across names and namespaces (documented since Kubernetes 1.35, KEP-5504
"Comparable Resource Version"; the API server has always done so). An object whose version cannot be parsed is accepted
in order of arrival.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from inflight_base.kube.changes import Changes, HistoryError
from inflight_base.kube.difference import packed_fields
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey, ServiceKey, key_of
from inflight_base.manifest.names import (
    DEFAULT_CLASS,
    FIELD_MANAGER,
    KIND,
    PREFETCH_LABELS,
    SERVICE_LABEL,
    SLICE_MANAGER,
    SLICE_MANAGER_LABEL,
    SLICE_OF_LABEL,
    child_names,
    class_of,
)
from inflight_base.manifest.sharing import shared
from inflight_base.manifest.slices import endpoints
from inflight_operator.observe.pods import PodView, pod_view

POD, ENDPOINTS = "Pod", "EndpointSlice"

TEMPLATE_HASH_LABEL = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cached object.

    Attributes:
        owner: the service that needs a round when it changes: an InferenceService itself.
        child_of: the service that has it as a child; None for an InferenceService that is no child.
        value: a PodView or a `_Fetcher` for a pod, a `_ReadyPods` for an EndpointSlice of Kubernetes, else the
            manifest.
    """

    uid: str
    version: int | None
    owner: ServiceKey
    child_of: ServiceKey | None
    value: Any


class _ReadyPods(NamedTuple):
    """Uids of the pods of ready endpoints. Attributes: service: name of the Service."""

    service: str
    uids: frozenset[str]


class _Fetcher(NamedTuple):
    """A pod that fetches a model before engines need it. Attributes: job: name of its Job."""

    job: str
    pod: PodView


class ClusterCache:
    """Objects of the cluster by service. Single-threaded: runs in the event loop.

    Args:
        class_name: class of the services; others do not exist here.
    """

    def __init__(self, class_name: str = DEFAULT_CLASS) -> None:
        self._class = class_name
        self._entries: dict[str, dict[ObjectKey, _Entry]] = defaultdict(dict)
        self._owned: dict[ServiceKey, dict[tuple[str, str], _Entry]] = {}
        self._seen: dict[tuple[str, str | None], int] = {}

    def services(self) -> list[ServiceKey]:
        return [entry.owner for entry in self._entries[KIND].values()]

    def count(self) -> int:
        """The number of services."""
        return len(self._entries[KIND])

    def service(self, key: ServiceKey) -> Manifest | None:
        """The InferenceService as the API returns it, without managedFields unless it is the child of another one; None
        if it does not exist."""
        entry = self._entries[KIND].get(key)
        return None if entry is None else entry.value

    def children(self, key: ServiceKey) -> list[Manifest]:
        """All objects with the service's label, including those of another owner, except pods and EndpointSlices of
        Kubernetes."""
        return [entry.value for entry in self._owned.get(key, {}).values() if isinstance(entry.value, dict)]

    def child(self, key: ServiceKey, kind: str, name: str) -> Manifest | None:
        entry = self._owned.get(key, {}).get((kind, name))
        return None if entry is None else entry.value

    def pods(self, key: ServiceKey) -> list[PodView]:
        """Pods of the service's Deployment by name, terminating ones included."""
        found = (one.value for one in self._of(key, POD))
        return sorted((pod for pod in found if isinstance(pod, PodView)), key=lambda pod: pod.name)

    def fetchers(self, key: ServiceKey) -> dict[str, PodView]:
        """The newest pod of each Job that fetches the service's model, by the name of the Job."""
        found = [one.value for one in self._of(key, POD) if isinstance(one.value, _Fetcher)]
        return {one.job: one.pod for one in sorted(found, key=lambda one: (one.pod.created, one.pod.name))}

    def endpoints(self, key: ServiceKey, of: str = "") -> frozenset[str]:
        """Uids of the pods that EndpointSlices of the service's Services list as ready, or of the Service called
        `of`."""
        slices = (one.value for one in self._of(key, ENDPOINTS))
        return frozenset().union(
            *(one.uids for one in slices if isinstance(one, _ReadyPods) and of in ("", one.service))
        )

    def take(self, kind: str, namespace: str | None, changes: Changes) -> set[ServiceKey]:
        """Stores changes from the watch of a kind (in one namespace, or in all). Returns the services that need a
        round for them. A change in a service's status alone (the operator writes it) is no reason for one, nor is an
        object that is known already.

        Raises:
            HistoryError: a list is older than earlier changes.
        """
        version, seen = _integer(changes.version), self._seen.get((kind, namespace), -1)
        if version is not None and version < seen and changes.names is not None:
            raise HistoryError(f"the list of {kind} is older than what came before: {version} after {seen}")
        self._seen[kind, namespace] = seen if version is None else max(seen, version)
        objects = dict(changes.objects)
        if changes.names is not None:  # an answer to a write may be all that was known of an object
            known = (key for key in self._entries[kind] if namespace in (None, key.namespace))
            objects |= dict.fromkeys(key for key in known if key not in changes.names)
        owners = (
            self._delete(kind, key, version) if body is None else self._store(kind, key, body)
            for key, body in objects.items()
        )
        return {owner for owner in owners if owner is not None}

    def put(self, kind: str, body: Mapping[str, Any]) -> ServiceKey | None:
        """Stores an object that was read beside the watch, such as the answer to a write. Returns the service that
        needs a round for it, if any."""
        key, version = key_of(body), _version(body)
        seen = max(self._seen.get((kind, None), -1), self._seen.get((kind, key.namespace), -1))
        if version is not None and version <= seen and key not in self._entries[kind]:
            return None  # deleted since: the watch has reported it
        return self._store(kind, key, body)

    def _of(self, key: ServiceKey, kind: str) -> list[_Entry]:
        return [entry for (one, _), entry in self._owned.get(key, {}).items() if one == kind]

    def _store(self, kind: str, key: ObjectKey, body: Mapping[str, Any]) -> ServiceKey | None:
        version, before = _version(body), self._entries[kind].get(key)
        if before is not None and version is not None and before.version is not None and version <= before.version:
            return None
        owner = _owner(kind, body)
        if owner is None or (kind == KIND and class_of(body) != self._class):
            return self._remove(kind, key)
        child_of = _parent(body) if kind == KIND else owner
        after = _Entry(body["metadata"].get("uid", ""), version, owner, child_of, _value(kind, body))
        ready = self.endpoints(owner) if isinstance(after.value, _ReadyPods) else None
        if before is not None and before.child_of != child_of:
            self._disown(kind, key, before.child_of)
        self._entries[kind][key] = after
        if child_of is not None:
            self._owned.setdefault(child_of, {})[kind, key.name] = after
        changed = _differs(kind, before, after) if ready is None else ready != self.endpoints(owner)
        return owner if changed else None

    def _delete(self, kind: str, key: ObjectKey, version: int | None) -> ServiceKey | None:
        """Removes an object that was deleted at `version`, unless a newer one has its name."""
        entry = self._entries[kind].get(key)
        if entry is not None and version is not None and entry.version is not None and version < entry.version:
            return None
        return self._remove(kind, key)

    def _remove(self, kind: str, key: ObjectKey) -> ServiceKey | None:
        entry = self._entries[kind].pop(key, None)
        if entry is None:
            return None
        ready = self.endpoints(entry.owner) if isinstance(entry.value, _ReadyPods) else None
        self._disown(kind, key, entry.child_of)
        return entry.owner if ready is None or ready != self.endpoints(entry.owner) else None

    def _disown(self, kind: str, key: ObjectKey, parent: ServiceKey | None) -> None:
        if parent is None:
            return
        owned = self._owned.get(parent, {})
        owned.pop((kind, key.name), None)
        if not owned:
            self._owned.pop(parent, None)


def _version(body: Mapping[str, Any]) -> int | None:
    return _integer(body["metadata"].get("resourceVersion", ""))


def _integer(version: str) -> int | None:
    return int(version) if version.isascii() and version.isdigit() else None


def _owner(kind: str, body: Mapping[str, Any]) -> ServiceKey | None:
    """Returns the service that an object belongs to; None without one."""
    namespace, name = key_of(body)
    if kind == KIND:
        return ServiceKey(namespace, name)
    parent = _parent(body)
    if parent is None:
        return None
    labels, service = body["metadata"]["labels"], parent.name
    if kind == POD and not _is_replica(body, service) and not _job_of(body):
        return None
    if kind == ENDPOINTS:
        names = child_names(service)
        if labels.get(SLICE_OF_LABEL) not in (service, names.engines, names.picker):
            return None
    return parent


def _parent(body: Mapping[str, Any]) -> ServiceKey | None:
    """Returns the service whose child an object says to be by its label; None without one."""
    name = (body["metadata"].get("labels") or {}).get(SERVICE_LABEL)
    return ServiceKey(key_of(body).namespace, name) if name else None


def _is_replica(pod: Mapping[str, Any], service: str) -> bool:
    """Returns True if the pod's controller is a ReplicaSet of the service's Deployment. Labels alone can be copied, as
    `kubectl debug --copy-to --keep-labels` does. A ReplicaSet is named after its Deployment and the template's hash."""
    metadata = pod["metadata"]
    replica_set = f"{service}-{metadata['labels'].get(TEMPLATE_HASH_LABEL, '')}"
    return any(
        owner.get("controller") and (owner.get("kind"), owner.get("name")) == ("ReplicaSet", replica_set)
        for owner in metadata.get("ownerReferences") or ()
    )


def _job_of(pod: Mapping[str, Any]) -> str:
    """Returns the Job of a pod that fetches a model; empty for other pods."""
    metadata = pod["metadata"]
    if not PREFETCH_LABELS.items() <= metadata["labels"].items():
        return ""
    owners = (one for one in metadata.get("ownerReferences") or () if one.get("controller"))
    return next((str(one.get("name")) for one in owners if one.get("kind") == "Job"), "")


def _value(kind: str, body: Mapping[str, Any]) -> Any:
    """Returns the parts of an object that are read; only these are cached."""
    if kind == POD:
        job = _job_of(body)
        return _Fetcher(job, pod_view(body)) if job else pod_view(body)
    if kind == ENDPOINTS and body["metadata"]["labels"].get(SLICE_MANAGER_LABEL) != SLICE_MANAGER:
        return _ready_pods(body)
    # Whether a child must be applied is read from what the operator applied last; see inflight_base.kube.difference.
    fields = [one for one in body["metadata"].get("managedFields") or () if one.get("manager") == FIELD_MANAGER]
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    if kind != KIND or _parent(body) is not None:
        metadata["managedFields"] = [packed_fields(one) for one in fields]
    return shared({**body, "kind": kind, "metadata": metadata})


def _ready_pods(endpoint_slice: Mapping[str, Any]) -> _ReadyPods:
    uids = frozenset(one.uid for one in endpoints(endpoint_slice) if one.ready and one.uid)
    return _ReadyPods(endpoint_slice["metadata"]["labels"][SLICE_OF_LABEL], uids)


def _differs(kind: str, before: _Entry | None, after: _Entry) -> bool:
    """Returns True if a round may be needed."""
    if before is None or before.uid != after.uid:
        return True
    if kind == KIND:
        return _wants(before.value) != _wants(after.value)
    if kind == POD:
        return bool(before.value != after.value)
    return True


def _wants(body: Mapping[str, Any]) -> tuple[Any, ...]:
    metadata = body["metadata"]
    return metadata.get("generation"), metadata.get("deletionTimestamp")

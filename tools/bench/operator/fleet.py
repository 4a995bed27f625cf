"""The created services and their pods, admin tokens and replicas, as seen by watches."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

from inflight_base.kube.changes import Changes
from inflight_base.kube.client import KubeApi
from inflight_base.kube.kinds import Selection
from inflight_base.kube.reflector import Reflector
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_base.manifest.names import API_VERSION, DEFAULT_CLASS, KIND, SERVICE_LABEL, child_names
from inflight_base.manifest.pods import engine_container
from inflight_operator.render.admin_token import TOKEN_KEY
from tools.bench.operator.engines import EngineProcess
from tools.localcluster.layout import REPOSITORY
from tools.standin.page_text import CAPACITY

CRD_FILE = REPOSITORY / "crds" / "inflight.dev_inferenceservices.yaml"
SERVICES_PER_NAMESPACE = 50
GROWTH = 2
"""maxReplicas over minReplicas."""
CREATED_PER_S = 10.0


class Pod(NamedTuple):
    """Attributes: ready: Ready and not being deleted."""

    uid: str
    service: ServiceKey
    address: str
    ready: bool


class Deployed(NamedTuple):
    """A Deployment. Attributes: complete: all its pods are of the newest template, and available."""

    replicas: int
    image: str
    complete: bool


def keys(services: int, prefix: str = "team", first: int = 0) -> list[ServiceKey]:
    """Names of so many services from number `first` on, spread over namespaces."""
    return [
        ServiceKey(f"{prefix}-{number // SERVICES_PER_NAMESPACE:03}", f"model-{number:04}")
        for number in range(first, first + services)
    ]


def service(key: ServiceKey, pods: int, class_name: str = DEFAULT_CLASS) -> Manifest:
    """Spec of a service with everything that the operator does: it scales, tunes, and holds targets that a fake engine
    at rest keeps."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": key.namespace, "name": key.name},
        "spec": {
            "className": class_name,
            "model": {"source": "builtin://smollm2"},
            "accelerator": {"count": 0},
            "engine": {
                "maxNumSeqs": CAPACITY.max_num_seqs,
                "maxNumBatchedTokens": CAPACITY.max_num_batched_tokens,
            },
            "slo": {"ttftP95": "2s", "tpotP95": "50ms"},
            "scaling": {
                "minReplicas": pods,
                "maxReplicas": pods * GROWTH,
                # A queue that jumps is the load of this bench; by capacity alone it would be worked off.
                "targets": {"waitingRequests": 4},
            },
        },
    }


def with_namespaces(services: list[ServiceKey]) -> Iterator[Manifest]:
    """The namespaces that the services are in."""
    for name in sorted({key.namespace for key in services}):
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


async def create_all(api: KubeApi, services: Sequence[ServiceKey], pods: int, class_name: str = DEFAULT_CLASS) -> None:
    """Creates the services, at most `CREATED_PER_S` a second.

    Raises:
        ExceptionGroup: of KubeApiErrors.
    """
    start = monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, key in enumerate(services):
            await asyncio.sleep(max(0.0, start + number / CREATED_PER_S - monotonic()))
            tasks.create_task(api.create(service(key, pods, class_name)))


async def count_ready(api: KubeApi) -> int:
    """Services whose condition Ready is True."""
    return sum(_is_true(each, "Ready") for each in await api.list(Selection(KIND)))


class Fleet:
    """All pods and Deployments of the services as last seen; `watch` also sends the fake engines their identities."""

    def __init__(self, api: KubeApi, engines: EngineProcess) -> None:
        self._engines = engines
        self._pods: dict[ObjectKey, Pod] = {}
        self._by_service: dict[ServiceKey, set[ObjectKey]] = defaultdict(set)
        self._tokens: dict[ServiceKey, str] = {}
        self._deployed: dict[ServiceKey, Deployed] = {}
        self._awaited: dict[ServiceKey, asyncio.Future[float]] = {}
        self._observers: list[Callable[[ServiceKey], None]] = []
        watched = {"Secret": self._tokens_changed, "Pod": self._pods_changed, "Deployment": self._deployments_changed}
        self._reflectors = [
            Reflector(api, Selection(kind, labels=SERVICE_LABEL), changed) for kind, changed in watched.items()
        ]

    async def watch(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    @property
    def deployments(self) -> int:
        return len(self._deployed)

    @property
    def ready_pods(self) -> int:
        return sum(pod.ready for pod in self._pods.values())

    def pods(self, key: ServiceKey) -> list[Pod]:
        return [self._pods[pod] for pod in self._by_service[key]]

    def deployed(self, key: ServiceKey) -> Deployed | None:
        return self._deployed.get(key)

    @contextmanager
    def observed(self, observer: Callable[[ServiceKey], None]) -> Iterator[None]:
        """Calls `observer` during the block after each event of a service's pods or Deployment: no state is missed."""
        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    def addresses(self, key: ServiceKey | None = None) -> list[str]:
        """Returns the addresses of all pods, or of one service's pods, without pods that have none."""
        chosen = self._pods if key is None else self._by_service[key]
        return [self._pods[pod].address for pod in chosen if self._pods[pod].address]

    def next_scale_up(self, key: ServiceKey) -> asyncio.Future[float]:
        """The steady time at which the watch shows more replicas ordered for `key` than now, without a Deployment than
        none."""
        awaited: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._awaited[key] = awaited
        return awaited

    def _deployments_changed(self, changes: Changes) -> None:
        for name, body in changes.objects.items():
            key = ServiceKey(name.namespace, name.name)
            if body is None:
                self._deployed.pop(key, None)
                continue
            before, now = self._deployed.get(key), deployed(body)
            self._deployed[key] = now
            if now.replicas > (before.replicas if before else 0) and key in self._awaited:
                awaited = self._awaited.pop(key)
                if not awaited.done():  # else given up
                    awaited.set_result(monotonic())
            self._tell([key])

    def _pods_changed(self, changes: Changes) -> None:
        named, touched = [], set[ServiceKey]()
        for key, body in changes.objects.items():
            before = self._pods.pop(key, None)
            if before is not None:
                touched.add(before.service)
            if body is None:
                if before is not None:
                    self._by_service[before.service].discard(key)
                continue
            seen = self._pods[key] = pod(body)
            self._by_service[seen.service].add(key)
            touched.add(seen.service)
            if seen.address and (before is None or (seen.uid, seen.address) != (before.uid, before.address)):
                named.append(seen)
        self._name(named)
        self._tell(touched)

    def _tokens_changed(self, changes: Changes) -> None:
        for secret in changes.objects.values():
            if secret is None or secret["metadata"]["name"] != child_names(_service_of(secret).name).admin_token:
                continue
            key = _service_of(secret)
            self._tokens[key] = base64.b64decode(secret["data"][TOKEN_KEY]).decode()
            self._name([self._pods[pod] for pod in self._by_service[key] if self._pods[pod].address])

    def _tell(self, services: Iterable[ServiceKey]) -> None:
        for observer in self._observers:
            for key in services:
                observer(key)

    def _name(self, pods: list[Pod]) -> None:
        if pods:
            self._engines.pods([(pod.address, pod.uid, self._tokens.get(pod.service)) for pod in pods])


def _service_of(body: dict[str, Any]) -> ServiceKey:
    metadata = body["metadata"]
    return ServiceKey(metadata["namespace"], metadata["labels"][SERVICE_LABEL])


def pod(body: dict[str, Any]) -> Pod:
    """Reads a pod that the API server returned."""
    address = body.get("status", {}).get("podIP", "")
    ready = _is_true(body, "Ready") and "deletionTimestamp" not in body["metadata"]
    return Pod(body["metadata"]["uid"], _service_of(body), address, ready)


def deployed(body: Manifest) -> Deployed:
    """Reads a Deployment that the API server returned."""
    spec, status = body["spec"], body.get("status", {})
    replicas = spec.get("replicas", 1)
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    current = status.get("observedGeneration", 0) >= body["metadata"]["generation"]
    image = engine_container(spec["template"]["spec"]["containers"])["image"]
    return Deployed(replicas, image, current and counts == {replicas})


def _is_true(body: Manifest, condition: str) -> bool:
    """The API server stores no conditions as null for a moment."""
    conditions = body.get("status", {}).get("conditions") or []
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)

"""The created services and their pods, admin tokens and replicas, as seen by watches."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, NamedTuple

from inflight_base.kube.changes import Changes
from inflight_base.kube.client import KubeApi
from inflight_base.kube.kinds import Selection
from inflight_base.kube.reflector import Reflector
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_base.manifest.names import API_VERSION, KIND, SERVICE_LABEL, child_names
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
    uid: str
    service: ServiceKey
    address: str
    ready: bool


def keys(services: int) -> list[ServiceKey]:
    """Names of so many services, spread over namespaces."""
    return [
        ServiceKey(f"team-{number // SERVICES_PER_NAMESPACE:03}", f"model-{number:04}") for number in range(services)
    ]


def service(key: ServiceKey, pods: int) -> Manifest:
    """Spec of a service with everything that the operator does: it scales, tunes, and holds targets that a fake engine
    at rest keeps."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": key.namespace, "name": key.name},
        "spec": {
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


async def create_all(api: KubeApi, services: Sequence[ServiceKey], pods: int) -> None:
    """Creates the services, at most `CREATED_PER_S` a second.

    Raises:
        ExceptionGroup: of KubeApiErrors.
    """
    start = monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, key in enumerate(services):
            await asyncio.sleep(max(0.0, start + number / CREATED_PER_S - monotonic()))
            tasks.create_task(api.create(service(key, pods)))


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
        self._replicas: dict[ObjectKey, int] = {}
        self._awaited: dict[ServiceKey, asyncio.Future[float]] = {}
        watched = {"Secret": self._tokens_changed, "Pod": self._pods_changed, "Deployment": self._replicas_changed}
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
        return len(self._replicas)

    @property
    def ready_pods(self) -> int:
        return sum(pod.ready for pod in self._pods.values())

    def addresses(self, key: ServiceKey | None = None) -> list[str]:
        """Returns the addresses of all pods, or of one service's pods, without pods that have none."""
        chosen = self._pods if key is None else self._by_service[key]
        return [self._pods[pod].address for pod in chosen if self._pods[pod].address]

    def next_scale_up(self, key: ServiceKey) -> asyncio.Future[float]:
        """The steady time at which the watch shows more replicas ordered for `key` than now."""
        awaited: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._awaited[key] = awaited
        return awaited

    def _replicas_changed(self, changes: Changes) -> None:
        for key, deployment in changes.objects.items():
            if deployment is None:
                self._replicas.pop(key, None)
                continue
            before, replicas = self._replicas.get(key), deployment["spec"].get("replicas", 1)
            self._replicas[key] = replicas
            awaited = _service_of(deployment)
            if before is not None and replicas > before and awaited in self._awaited:
                self._awaited.pop(awaited).set_result(monotonic())

    def _pods_changed(self, changes: Changes) -> None:
        named = []
        for key, body in changes.objects.items():
            before = self._pods.pop(key, None)
            if body is None:
                if before is not None:
                    self._by_service[before.service].discard(key)
                continue
            seen = self._pods[key] = pod(body)
            self._by_service[seen.service].add(key)
            if seen.address and (before is None or (seen.uid, seen.address) != (before.uid, before.address)):
                named.append(seen)
        self._name(named)

    def _tokens_changed(self, changes: Changes) -> None:
        for secret in changes.objects.values():
            if secret is None or secret["metadata"]["name"] != child_names(_service_of(secret).name).admin_token:
                continue
            key = _service_of(secret)
            self._tokens[key] = base64.b64decode(secret["data"][TOKEN_KEY]).decode()
            self._name([self._pods[pod] for pod in self._by_service[key] if self._pods[pod].address])

    def _name(self, pods: list[Pod]) -> None:
        if pods:
            self._engines.pods([(pod.address, pod.uid, self._tokens.get(pod.service)) for pod in pods])


def _service_of(body: dict[str, Any]) -> ServiceKey:
    metadata = body["metadata"]
    return ServiceKey(metadata["namespace"], metadata["labels"][SERVICE_LABEL])


def pod(body: dict[str, Any]) -> Pod:
    """Reads a pod that the API server returned."""
    address = body.get("status", {}).get("podIP", "")
    return Pod(body["metadata"]["uid"], _service_of(body), address, _is_true(body, "Ready"))


def _is_true(body: Manifest, condition: str) -> bool:
    """The API server stores no conditions as null for a moment."""
    conditions = body.get("status", {}).get("conditions") or []
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)

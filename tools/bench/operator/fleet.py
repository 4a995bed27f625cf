"""The created services and their pods, admin tokens and replicas, as seen by watches."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from collections.abc import Iterator
from time import monotonic
from typing import Any, NamedTuple

import yaml

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import API_VERSION, KIND, PLURAL, SERVICE_LABEL, child_names
from inflight_operator.render.admin_token import TOKEN_KEY
from tools.bench.operator.client import Client
from tools.bench.operator.engines import EngineProcess
from tools.localcluster.layout import REPOSITORY
from tools.standin.page_text import CAPACITY

CRD_FILE = REPOSITORY / "crds" / "inflight.dev_inferenceservices.yaml"
SERVICES_PATH = f"/apis/{API_VERSION}/{PLURAL}"
SERVICES_PER_NAMESPACE = 50
GROWTH = 2
"""maxReplicas over minReplicas."""


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
    """Everything the operator does is on: it scales, tunes, and holds targets that a fake engine at rest keeps."""
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


def crd() -> Manifest:
    """The CustomResourceDefinition of the services."""
    read: Manifest = yaml.safe_load(CRD_FILE.read_text())
    return read


async def install_crd(client: Client) -> None:
    """Creates the CRD and waits until its API is served."""
    body = crd()
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await client.call("POST", path, body)
    while True:
        live = await client.call("GET", f"{path}/{body['metadata']['name']}")
        if _is_true(live, "Established"):
            return
        await asyncio.sleep(0.2)


async def count_ready(client: Client) -> int:
    """Services whose condition Ready is True."""
    services, _ = await client.list(SERVICES_PATH)
    return sum(_is_true(each, "Ready") for each in services)


class Fleet:
    """All pods and Deployments of the services as last seen; `watch` also tells the fake engines who they are."""

    def __init__(self, client: Client, engines: EngineProcess) -> None:
        self._client = client
        self._engines = engines
        self._pods: dict[str, Pod] = {}
        self._by_service: dict[ServiceKey, set[str]] = defaultdict(set)
        self._tokens: dict[ServiceKey, str] = {}
        self._replicas: dict[ServiceKey, int] = {}
        self._awaited: dict[ServiceKey, asyncio.Future[float]] = {}

    async def watch(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_tokens())
            tasks.create_task(self._watch_pods())
            tasks.create_task(self._watch_replicas())

    @property
    def deployments(self) -> int:
        return len(self._replicas)

    @property
    def ready_pods(self) -> int:
        return sum(pod.ready for pod in self._pods.values())

    def addresses(self, key: ServiceKey | None = None) -> list[str]:
        """Of all pods, or of those of one service, that have one."""
        uids = self._pods if key is None else self._by_service[key]
        return [self._pods[uid].address for uid in uids if self._pods[uid].address]

    def next_scale_up(self, key: ServiceKey) -> asyncio.Future[float]:
        """The steady time at which the watch shows more replicas ordered for `key` than now."""
        awaited: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._awaited[key] = awaited
        return awaited

    async def _watch_replicas(self) -> None:
        async for event, deployment in self._client.follow("/apis/apps/v1/deployments", labelSelector=SERVICE_LABEL):
            key, replicas = _service_of(deployment), deployment["spec"].get("replicas", 1)
            before = self._replicas.get(key)
            if event == "DELETED":
                self._replicas.pop(key, None)
                continue
            self._replicas[key] = replicas
            if before is not None and replicas > before and (awaited := self._awaited.pop(key, None)):
                awaited.set_result(monotonic())

    async def _watch_pods(self) -> None:
        async for event, body in self._client.follow("/api/v1/pods", labelSelector=SERVICE_LABEL):
            seen = pod(body)
            if event == "DELETED":
                self._pods.pop(seen.uid, None)
                self._by_service[seen.service].discard(seen.uid)
                continue
            before = self._pods.get(seen.uid)
            self._pods[seen.uid] = seen
            self._by_service[seen.service].add(seen.uid)
            if seen.address and (before is None or seen.address != before.address):
                await self._name([seen])

    async def _watch_tokens(self) -> None:
        async for event, secret in self._client.follow("/api/v1/secrets", labelSelector=SERVICE_LABEL):
            key = _service_of(secret)
            if event == "DELETED" or secret["metadata"]["name"] != child_names(key.name).admin_token:
                continue
            self._tokens[key] = base64.b64decode(secret["data"][TOKEN_KEY]).decode()
            await self._name([self._pods[uid] for uid in self._by_service[key] if self._pods[uid].address])

    async def _name(self, pods: list[Pod]) -> None:
        if pods:
            await self._engines.pods([(pod.address, pod.uid, self._tokens.get(pod.service)) for pod in pods])


def _service_of(body: dict[str, Any]) -> ServiceKey:
    metadata = body["metadata"]
    return ServiceKey(metadata["namespace"], metadata["labels"][SERVICE_LABEL])


def pod(body: dict[str, Any]) -> Pod:
    """From what the API server returns."""
    address = body.get("status", {}).get("podIP", "")
    return Pod(body["metadata"]["uid"], _service_of(body), address, _is_true(body, "Ready"))


def _is_true(body: Manifest, condition: str) -> bool:
    """The API server stores no conditions as null for a moment."""
    conditions = body.get("status", {}).get("conditions") or []
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)

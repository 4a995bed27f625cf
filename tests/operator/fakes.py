"""Stand-ins for loop tests: an API server that only records and stores, and engines that answer over a mock transport.
They are not Kubernetes and not engines; the same loop is run on real ones elsewhere."""

import copy
import json
from dataclasses import dataclass, field, replace

import httpx

from inflight_operator.apply.difference import FIELD_MANAGER
from inflight_operator.apply.status import status_patch
from inflight_operator.observe.cache import ServiceKey
from tests.operator.model_engine import ModelEngine

KEY = ServiceKey("team", "chat")


def service_body(spec=None, status=None, generation=1, uid="service-uid"):
    body = {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": KEY.name, "namespace": KEY.namespace, "uid": uid, "generation": generation},
        "spec": {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}, **(spec or {})},
    }
    return body if status is None else {**body, "status": status}


def pod_body(name, *, ip="10.0.0.1", ready=True, uid=None, deleting=False, status=None):
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    metadata = {
        "name": name,
        "namespace": KEY.namespace,
        "uid": uid or f"uid-{name}",
        "creationTimestamp": "2026-11-20T10:00:00Z",
        "labels": {"inflight.dev/service": KEY.name, "pod-template-hash": "abc"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": f"{KEY.name}-abc", "uid": "rs", "controller": True}],
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-20T11:00:00Z"
    running = {"name": "engine", "restartCount": 0, "state": {"running": {}}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": "node-1", "containers": [{"name": "engine", "image": "engine:dev"}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": conditions,
            "containerStatuses": [running],
            **(status or {}),
        },
    }


def exposition(sample):
    """A sample as an engine's /metrics page."""
    label = '{model_name="m"}'
    lines = [
        f"vllm:num_requests_running{label} {sample.running}",
        f"vllm:num_requests_waiting{label} {sample.waiting}",
        f"vllm:kv_cache_usage_perc{label} {sample.kv_usage}",
        f"vllm:num_preemptions_total{label} {sample.preemptions}",
        f"vllm:generation_tokens_total{label} {sample.generation_tokens}",
    ]
    ours = {
        "waiting_prompt_tokens": sample.waiting_prompt_tokens,
        "max_num_seqs": sample.max_num_seqs,
        "max_num_seqs_capacity": sample.max_num_seqs_capacity,
        "max_num_batched_tokens": sample.max_num_batched_tokens,
        "max_num_batched_tokens_capacity": sample.max_num_batched_tokens_capacity,
        "runtime_config_revision": sample.revision,
    }
    lines += [f"inflight_{name}{label} {value}" for name, value in ours.items() if value is not None]
    for name, histogram in (
        ("vllm:time_to_first_token_seconds", sample.ttft),
        ("vllm:request_time_per_output_token_seconds", sample.tpot),
        ("vllm:inter_token_latency_seconds", sample.itl),
        ("vllm:iteration_tokens_total", sample.step_tokens),
    ):
        for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
            edge = "+Inf" if bound == float("inf") else bound
            lines.append(f'{name}_bucket{{model_name="m",le="{edge}"}} {count}')
        lines.append(f"{name}_sum{label} {histogram.total}")
        lines.append(f"{name}_count{label} {histogram.count}")
    return "\n".join(lines) + "\n"


@dataclass
class FakeEngine:
    """One pod's engine: a model of speed behind the two routes that the operator calls."""

    model: ModelEngine
    token: str = ""
    revision: int = 0
    patches: list = field(default_factory=list)
    refuse: int | None = None
    silent: bool = False

    def answer(self, request):
        if self.silent:
            raise httpx.ConnectTimeout("no answer", request=request)
        if request.method == "GET":
            sample = self.model.sample()
            shown = replace(
                sample, revision=self.revision, max_num_seqs_capacity=64, max_num_batched_tokens_capacity=2048
            )
            return httpx.Response(200, text=exposition(shown))
        assert request.url.path == "/v1/runtime_config"
        if self.refuse:
            return httpx.Response(self.refuse, text="refused")
        body = json.loads(request.content)
        self.patches.append((body, request.headers["authorization"]))
        self.model.max_num_seqs = body["max_num_seqs"]
        self.model.max_num_batched_tokens = body["max_num_batched_tokens"]
        self.revision = body["revision"]
        return httpx.Response(200, json=body)


class FakeApi:
    """Records calls in order; what is applied lands in the cache at once, as a watch would bring it."""

    def __init__(self, cache):
        self.cache = cache
        self.calls = []
        self.fail = {}
        self.statuses = []

    def _call(self, *call):
        self.calls.append(call)
        error = self.fail.get(call[0])
        if error is not None:
            raise error

    async def get(self, kind, namespace, name):
        self._call("get", kind, name)

    async def list(self, kind, namespace=None, selector=None):
        self._call("list", kind)
        return []

    async def apply(self, manifest):
        self._call("apply", manifest["kind"], copy.deepcopy(manifest))
        owned = {f"f:{key}": {} for key in manifest if key not in ("apiVersion", "kind", "metadata")}
        entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": owned}
        live = copy.deepcopy(manifest)
        live["metadata"]["managedFields"] = [entry]
        self.cache.put(manifest["kind"], live)
        return live

    async def delete(self, kind, namespace, name, uid=None):
        self._call("delete", kind, name)

    async def patch_status(self, service, status):
        if status_patch(service.status.to_dict(), status) is None:
            return None
        self._call("status", status)
        self.statuses.append(status)
        return {**self.cache.service(ServiceKey(service.metadata.namespace, service.metadata.name)), "status": status}

    async def set_pod_deletion_cost(self, namespace, pod, cost):
        self._call("cost", pod, cost)

    async def event(self, service, type, reason, message):
        self._call("event", type, reason, message)

    def of(self, verb):
        return [call for call in self.calls if call[0] == verb]

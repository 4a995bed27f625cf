"""Stand-ins for loop tests: an API server that only records and stores, and engines that answer over a mock transport.
They are not Kubernetes and not engines; the same loop is run on real ones elsewhere."""

import copy
from dataclasses import dataclass, field, replace

from inflight_base.kube.changes import Changes
from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_base.manifest.names import DELETION_COST, FIELD_MANAGER
from inflight_operator.apply.engines import EngineError
from inflight_operator.observe.window import Window
from inflight_settings.limits import Limits
from tests.operator.model_engine import ModelEngine

KEY = ServiceKey("team", "chat")
PORTS = [{"name": "http", "containerPort": 8000}, {"name": "admin", "containerPort": 8001}]


def service_body(spec=None, status=None, generation=1, uid="service-uid"):
    body = {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": KEY.name, "namespace": KEY.namespace, "uid": uid, "generation": generation},
        "spec": {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}, **(spec or {})},
    }
    return body if status is None else {**body, "status": status}


def delete(cache, kind, body):
    """Stores an object as the watch reports it. Returns the service that needs a round for it, if any."""
    key = ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"])
    owners = cache.take(kind, None, Changes({key: None}, body["metadata"].get("resourceVersion", "")))
    return next(iter(owners), None)


def pod_body(
    name,
    *,
    ip="10.0.0.1",
    ready=True,
    uid=None,
    deleting=False,
    status=None,
    ports=PORTS,
    created="2026-11-20T10:00:00Z",
):
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    metadata = {
        "name": name,
        "namespace": KEY.namespace,
        "uid": uid or f"uid-{name}",
        "creationTimestamp": created,
        "labels": {"inflight.dev/service": KEY.name, "pod-template-hash": "abc"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": f"{KEY.name}-abc", "uid": "rs", "controller": True}],
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-20T11:00:00Z"
    running = {"name": "engine", "restartCount": 0, "state": {"running": {}}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": "node-1", "containers": [{"name": "engine", "image": "engine:dev", "ports": ports}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": conditions,
            "containerStatuses": [running],
            **(status or {}),
        },
    }


def endpoints_body(pods):
    """An EndpointSlice of the service that lists these pods as ready."""
    name, namespace = KEY.name, KEY.namespace
    labels = {"inflight.dev/service": name, "kubernetes.io/service-name": name}
    targets = [{"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods]
    return {
        "metadata": {"name": f"{name}-slice", "namespace": namespace, "labels": labels, "uid": "uid-slice"},
        "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "targetRef": target} for target in targets
        ],
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
        "max_num_seqs": sample.limits and sample.limits.max_num_seqs,
        "max_num_seqs_capacity": sample.capacity and sample.capacity.max_num_seqs,
        "max_num_batched_tokens": sample.limits and sample.limits.max_num_batched_tokens,
        "max_num_batched_tokens_capacity": sample.capacity and sample.capacity.max_num_batched_tokens,
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
    """A pod's engine: a model of speed behind the two calls that the operator makes."""

    model: ModelEngine
    revision: int = 0
    capacity: Limits = field(default_factory=lambda: Limits(64, 2048))
    pushed: list = field(default_factory=list)
    refuse: str = ""
    silent: bool = False
    foreign: bool = False
    digest: str = ""
    asleep: int = 0
    weights: tuple = (0.0, 0.0, 0.0)
    cache_problem: str = ""
    loading: tuple = (None, None, None)

    def sample(self):
        own = {"revision": self.revision, "capacity": self.capacity, "digest": self.digest, "asleep": self.asleep}
        own["cache_problem"] = self.cache_problem
        own |= dict(zip(("peer_weights", "source_weights", "peer_failures"), self.weights, strict=True))
        names = ("loading_read_bytes", "loading_total_bytes", "loading_seconds")
        sample = replace(self.model.sample(), **own, **dict(zip(names, self.loading, strict=True)))
        return replace(sample, limits=None, capacity=None, revision=None) if self.foreign else sample


class FakePool:
    """Scrapes the engines at once when a test asks for it, in place of `ScrapePool`'s own times."""

    def __init__(self, engines, span=30.0):
        self.engines = engines
        self.span = span
        self.kept = {}
        self.windows = {}
        self.failed = {}
        self.late = False
        """The operator's own delay: no scrape falls due."""

    def keep(self, key, targets):
        before, self.kept[key] = self.kept.get(key, {}), {target.uid: target for target in targets}
        self._scrape(key, [target for target in targets if target.uid not in before])

    async def first_results(self, key, within):
        """Scrapes have results at once."""

    def queue(self, key):
        window = self.windows.get(key)
        return 0 if window is None else sum(pod.newest.waiting for pod in window.pods.values())

    def tick(self):
        for key, targets in () if self.late else self.kept.items():
            self._scrape(key, targets.values())

    def _scrape(self, key, targets):
        engines = {target.uid: self.engines[target.url.split("/")[2].split(":")[0]] for target in targets}
        samples = {uid: engine.sample() for uid, engine in engines.items() if not engine.silent}
        names = {target.uid: target.name for target in targets}
        silent = {uid: f"{names[uid]} did not answer /metrics" for uid in engines if uid not in samples}
        failed = {uid: error for uid, error in self.failed.get(key, {}).items() if uid not in samples}
        self.failed[key] = {**failed, **silent}
        now = max((sample.time for sample in samples.values()), default=0.0)
        self.windows[key] = self.windows.get(key, Window(self.span)).with_samples(samples, self.kept[key], now)

    def forget(self, key):
        self.kept.pop(key, None)

    def window(self, key):
        return self.windows.get(key, Window(self.span))

    def errors(self, key):
        return self.failed.get(key, {})


class FakeEngines:
    """The engines' admin API in place of `EngineClient`: an engine takes its limits at once, or refuses them."""

    def __init__(self, engines):
        self.engines = engines

    async def set_limits(self, pod, token, limits):
        engine = self.engines[pod.ip]
        if engine.refuse:
            raise EngineError(f"{pod.name} did not take its limits: {engine.refuse}")
        assert pod.admin_port == 8001
        if limits.revision < engine.revision:
            raise EngineError(f"{pod.name} did not take its limits: HTTP 409")
        engine.pushed.append((limits, token))
        engine.model.max_num_seqs = limits.limits.max_num_seqs
        engine.model.max_num_batched_tokens = limits.limits.max_num_batched_tokens
        engine.revision = limits.revision


class FakeApi:
    """Records calls in order; what is applied lands in the cache at once, as a watch would bring it."""

    def __init__(self, cache):
        self.cache = cache
        self.calls = []
        self.fail = {}
        self.refuse = {}
        self.rewrite = False
        self.statuses = []
        self.nodes = []

    def _call(self, *call):
        self.calls.append(call)
        error = self.fail.get(call[0])
        if error is not None:
            raise error

    async def get(self, kind, namespace, name):
        self._call("get", kind, name)

    async def list(self, selection):
        self._call("list", selection.kind)
        return self.nodes if selection.kind == "Node" else []

    async def apply(self, manifest, *, force=True):
        self._call("apply", manifest["kind"], copy.deepcopy(manifest))
        if manifest["kind"] in self.refuse:
            raise self.refuse[manifest["kind"]]
        owned = {f"f:{key}": {} for key in manifest if key not in ("apiVersion", "kind", "metadata")}
        entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": owned}
        live = copy.deepcopy(manifest)
        if self.rewrite and manifest["kind"] == "Deployment":
            live["spec"]["template"]["spec"]["containers"][0]["image"] += "@sha256:0"
        live["metadata"]["managedFields"] = [entry]
        return live

    async def delete(self, kind, namespace, name, uid=None):
        self._call("delete", kind, name)

    async def patch_status(self, service, status):
        if service.status.to_dict() == status:
            return None
        self._call("status", status)
        self.statuses.append(status)
        key = ServiceKey(service.metadata.namespace, service.metadata.name)
        return {**self.cache.service(key), "status": status}

    async def set_in_deployment(self, namespace, name, fields):
        self._call("deployment", name, fields)
        live = copy.deepcopy(self.cache.child(ServiceKey(namespace, name), "Deployment", name))
        live["spec"] |= fields
        return live

    async def annotate_pod(self, namespace, pod, name, value):
        if name == DELETION_COST:
            self._call("cost", pod, int(value))
        else:
            self._call("annotation", pod, name, value)
        if pod in self.refuse:
            raise self.refuse[pod]

    async def event(self, service, type, reason, message):
        self._call("event", type, reason, message)

    def of(self, verb):
        return [call for call in self.calls if call[0] == verb]

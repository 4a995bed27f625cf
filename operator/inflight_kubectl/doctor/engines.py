"""Engines of types vllm and custom: the plugin's state, and the metrics pages that services name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from inflight_base.manifest.engines import INFLIGHT, VLLM, EngineType
from inflight_base.page.reader import PageError
from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.access.operators import upgrade_of_operator
from inflight_kubectl.access.resources import Service
from inflight_kubectl.doctor.result import Result, fail, ok, warn
from inflight_kubectl.engines.engine_metrics import metrics_port, page_text
from inflight_kubectl.output import Problem

_INFO = re.compile(r"^inflight_plugin_info\{(.*)\} 1", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def check_engines(cluster: Cluster) -> Iterator[Result]:
    """Checks a pod of each service with engines of another type than inflight; no results without such services."""
    for service in cluster.services():
        if service.engine.name != INFLIGHT:
            yield from _engines_of(cluster, service)


def _engines_of(cluster: Cluster, service: Service) -> Iterator[Result]:
    import httpx

    from inflight_kubectl.engines.engine_access import forward_to_pod

    name = f"engines of {service.namespace}/{service.name}"
    tuning = service.condition("TuningActive")
    if tuning is not None and tuning.reason == "NoPluginImage":
        yield warn(name, tuning.message, upgrade_of_operator(cluster))
        return
    # Pods of an earlier type leave.
    pod = next((one for one in cluster.pods(service) if one.serves and one.engine == service.engine), None)
    if pod is None:
        return
    engine, port = pod.engine, metrics_port(pod)
    logs = f"kubectl -n {pod.namespace} logs {pod.name} -c engine"
    with forward_to_pod(cluster, pod, port) as forward:
        try:
            with forward.client(timeout=5.0) as http:
                page = page_text(http, engine.metrics_path)
        except (httpx.HTTPError, Problem, PageError) as error:
            found = f"{pod.name} has no metrics page at port {port}, {engine.metrics_path}: {error}"
            yield warn(name, f"{found}; replicas follow the gateway's requests alone", logs)
            return
    yield judged(name, pod.name, engine, page, logs)


def judged(name: str, pod: str, engine: EngineType, page: str, logs: str) -> Result:
    """Returns the result of a metrics page.

    Args:
        name: of the check. logs: command that shows the engine's log.
    """
    if engine.name == VLLM and engine.plugin:
        info = _INFO.search(page)
        if info is None:
            return fail(name, f"{pod} runs vLLM without Inflight's plugin, which the service asks for", logs)
        labels = dict(_LABEL.findall(info[1]))
        versions = f"plugin {labels.get('version')} in vLLM {labels.get('vllm_version')}"
        if labels.get("state") != "active":
            return warn(name, f"{pod}: {versions} does nothing, limits stay: {labels.get('reason')}", logs)
        return ok(name, f"{pod}: {versions} is active")
    lost = [theirs for theirs in engine.metrics.values() if not re.search(rf"(?m)^{re.escape(theirs)}\b", page)]
    if lost:
        remedy = f"kubectl explain ifsvc.spec.engine.custom.metrics, and compare with the page of {pod}"
        return warn(name, f"the metrics page of {pod} has no {', no '.join(lost)}", remedy)
    return ok(name, f"{pod} has the metrics that the service names")

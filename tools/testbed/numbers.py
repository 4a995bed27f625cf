"""A service's live numbers, from the metrics pages of the operator and the gateway.

The status has conditions and decisions; plain numbers reach it at most once a minute. Pages are read through the API
server's proxy, so that no port has to be forwarded.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tools.localcluster import kubectl
from tools.testbed.helm import OPERATOR_NAMESPACE
from tools.testbed.pods import pods
from tools.testbed.service import Service

PREFIX = "inflight_operator_service_"
SELECTOR = "app.kubernetes.io/name=inflight-operator"
METRICS_PORT, GATEWAY_PORT = 8080, 9003
CONTINUATIONS = "inflight_gateway_continuations_total"


@dataclass(frozen=True)
class Numbers:
    """The operator's latest measurements and decisions; None: not on its page (yet).

    Attributes:
        waiting_requests, running_requests: over all pods.
        kv_utilization: share of the KV cache in use, 0 to 1.
        replicas: ordered ones; ready_replicas: those that serve.
        max_num_seqs, max_num_batched_tokens: the limits in force in each pod.
    """

    waiting_requests: int | None = None
    running_requests: int | None = None
    kv_utilization: float | None = None
    replicas: int | None = None
    ready_replicas: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


def numbers(service: Service) -> Numbers:
    """The numbers now. Only the operator pod that leads has them on its page."""
    for pod in pods(OPERATOR_NAMESPACE, SELECTOR):
        found = numbers_on(_page(pod.name, METRICS_PORT), service)
        if found != Numbers():
            return found
    return Numbers()


def numbers_on(page: str, service: Service) -> Numbers:
    """The numbers of one service on a metrics page in Prometheus' text format."""
    values = {
        sample.name.removeprefix(PREFIX): sample.value
        for family in text_string_to_metric_families(page)
        if family.name.startswith(PREFIX)
        for sample in family.samples
        if (sample.labels.get("namespace"), sample.labels.get("name")) == (service.namespace, service.name)
    }

    def whole(name: str) -> int | None:
        return int(values[name]) if name in values else None

    return Numbers(
        waiting_requests=whole("waiting_requests"),
        running_requests=whole("running_requests"),
        kv_utilization=values.get("kv_utilization"),
        replicas=whole("replicas"),
        ready_replicas=whole("ready_replicas"),
        max_num_seqs=whole("max_num_seqs"),
        max_num_batched_tokens=whole("max_num_batched_tokens"),
    )


def continuations(pod: str, service: Service) -> int:
    """Answers of a service that a gateway pod continued at another engine; 0 if the pod does not answer."""
    return counted(_page(pod, GATEWAY_PORT), CONTINUATIONS, service)


def counted(page: str, metric: str, service: Service) -> int:
    """The sum of a counter's series of one service on a page in Prometheus' text format."""
    return int(
        sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == metric
            and (sample.labels.get("namespace"), sample.labels.get("service")) == (service.namespace, service.name)
        )
    )


def _page(pod: str, port: int) -> str:
    """The metrics page of a pod of the release; empty where it does not answer, as a pod that starts or ends."""
    path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:{port}/proxy/metrics"
    return kubectl("get", "--raw", path, check=False)

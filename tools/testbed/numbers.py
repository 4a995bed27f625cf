"""A service's live numbers, from the metrics pages of operator and gateway.

The status has conditions and decisions; plain numbers reach it at most once a minute. The pages are read through the
API server's proxy, so that no port has to be forwarded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tools.localcluster import kubectl
from tools.testbed.helm import OPERATOR_NAMESPACE
from tools.testbed.pods import pods
from tools.testbed.service import Service

PREFIX = "inflight_operator_service_"
SELECTOR = "app.kubernetes.io/name=inflight-operator"
METRICS_PORT = 8080
STATE_PORT = 9003
LOCAL_PORT = 9004
CONTINUATIONS = "inflight_gateway_continuations_total"


@dataclass(frozen=True)
class Numbers:
    """The operator's latest measurements and decisions; None: not on its page (yet).

    Attributes:
        waiting_requests, running_requests: over all pods.
        kv_utilization: share of the KV cache in use, 0 to 1.
        replicas: ordered ones; ready_replicas: those that serve.
        max_num_seqs, max_num_batched_tokens: the limits in force in each pod.
        demand_requests_per_second: expected; replica_requests_per_second: what one replica sustains within the targets.
        needed_replicas: the first by the second.
    """

    waiting_requests: int | None = None
    running_requests: int | None = None
    kv_utilization: float | None = None
    replicas: int | None = None
    ready_replicas: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    demand_requests_per_second: float | None = None
    replica_requests_per_second: float | None = None
    needed_replicas: float | None = None


_FRACTIONS = ("kv_utilization", "demand_requests_per_second", "replica_requests_per_second", "needed_replicas")


def numbers(service: Service) -> Numbers:
    """The numbers now. Only the operator pod that leads has them on its page."""
    for pod in pods(OPERATOR_NAMESPACE, SELECTOR):
        found = numbers_on(page(pod.name, METRICS_PORT), service)
        if found != Numbers():
            return found
    return Numbers()


def numbers_on(page: str, service: Service) -> Numbers:
    """The numbers of one service on a metrics page in Prometheus' text format."""
    found = {
        name.removeprefix(PREFIX): value
        for name, value in _samples(page, namespace=service.namespace, name=service.name)
    }
    known: dict[str, Any] = {field.name: found[field.name] for field in fields(Numbers) if field.name in found}
    return Numbers(**{name: value if name in _FRACTIONS else int(value) for name, value in known.items()})


def continuations(pod: str, service: Service) -> int:
    """Answers of the service that a gateway pod has continued at another engine; 0 if the pod does not answer."""
    return counted(page(pod, STATE_PORT), CONTINUATIONS, service)


def owner(pod: str, service: Service) -> str | None:
    """The gateway pod that owns a service, as a gateway pod sees it; None if that one does not answer."""
    url = f"http://127.0.0.1:{LOCAL_PORT}/v1/picks?namespace={service.namespace}&service={service.name}"
    script = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=5).read().decode())"
    command = ("exec", pod, "-c", "picker", "--", "/opt/inflight/bin/python", "-c", script)
    said = kubectl("-n", OPERATOR_NAMESPACE, *command, check=False)
    return json.loads(said)["owner"] if said.startswith("{") else None


def counted(page: str, metric: str, service: Service, **labels: str) -> int:
    """The sum of a metric's series of one service on a page in Prometheus' text format. Args: labels: others that the
    series have."""
    return int(
        sum(
            value
            for name, value in _samples(page, namespace=service.namespace, service=service.name, **labels)
            if name == metric
        )
    )


def page(pod: str, port: int) -> str:
    """The metrics page of a pod of operator or gateway; empty where it does not answer, as one that starts or ends."""
    path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:{port}/proxy/metrics"
    return kubectl("get", "--raw", path, check=False)


def _samples(page: str, **labels: str) -> Iterator[tuple[str, float]]:
    """Names and values of the samples that have these labels."""
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                yield sample.name, sample.value

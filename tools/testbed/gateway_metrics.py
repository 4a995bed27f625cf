"""Counters of a service on the metrics page of a gateway pod, read through the API server's proxy."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tools.localcluster import kubectl
from tools.testbed.helm import OPERATOR_NAMESPACE
from tools.testbed.service import Service

STATE_PORT = 9003
CONTINUATIONS = "inflight_gateway_continuations_total"


def continuations(pod: str, service: Service) -> int:
    """Answers that were continued at another engine; 0 if the pod does not answer."""
    path = f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:{STATE_PORT}/proxy/metrics"
    return counted(kubectl("get", "--raw", path, check=False), CONTINUATIONS, service)


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

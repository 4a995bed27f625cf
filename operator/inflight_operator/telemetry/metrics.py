"""Metrics of the operator, `inflight_operator_*`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from inflight_operator.telemetry.service_metrics import ServiceMetrics


class OperatorMetrics:
    """All metrics of one operator process, in a registry of their own.

    Attributes:
        of_services: metrics of each service.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.reconciles = Counter(
            "inflight_operator_reconcile",
            "Reconcile rounds of services, by result: done or failed.",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "inflight_operator_reconcile_duration_seconds",
            "Duration of a reconcile round of one service.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.decisions = Counter(
            "inflight_operator_decisions",
            "Decisions over all services, by kind (Scaling, Tuning) and reason.",
            ["kind", "reason"],
            registry=self.registry,
        )
        self.services = Gauge(
            "inflight_operator_services", "InferenceServices that the operator serves.", registry=self.registry
        )
        self.leader = Gauge("inflight_operator_leader", "1 in the process that leads.", registry=self.registry)
        self.of_services = ServiceMetrics()
        self.registry.register(self.of_services)

    def count_scrapes(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Exports scrapes done and failed since the start, from `counts`."""
        self.registry.register(_Scrapes(counts))

    def count_gateway_pods(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Exports the gateway's pods, from `counts`: connected, and all."""
        self.registry.register(_GatewayPods(counts))


class _Scrapes(Collector):
    def __init__(self, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts

    def collect(self) -> list[CounterMetricFamily]:
        family = CounterMetricFamily(
            "inflight_operator_scrapes", "Scrapes of engines, by result: done or failed.", labels=["result"]
        )
        for result, count in zip(("done", "failed"), self._counts(), strict=True):
            family.add_metric([result], count)
        return [family]


class _GatewayPods(Collector):
    def __init__(self, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts

    def collect(self) -> list[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "inflight_operator_gateway_pods",
            "Pods of the gateway, by whether the operator receives their state: heard or silent.",
            labels=["state"],
        )
        heard, pods = self._counts()
        family.add_metric(["heard"], heard)
        family.add_metric(["silent"], pods - heard)
        return [family]

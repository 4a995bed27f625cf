"""What the operator tells about itself, with Prometheus names `inflight_operator_*`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class OperatorMetrics:
    """All metrics of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "inflight_operator_reconcile",
            "Rounds of the loop for one service, by how they ended.",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "inflight_operator_reconcile_duration_seconds",
            "How long a round for one service took.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.desired_replicas = Gauge(
            "inflight_operator_desired_replicas",
            "Replicas the operator finds right; in scaling.mode External nobody but its reader acts on it.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.decisions = Counter(
            "inflight_operator_decisions",
            "Changes decided on, by kind (Scaling, Tuning) and reason.",
            ["kind", "reason"],
            registry=self.registry,
        )
        self.scrape_age = Gauge(
            "inflight_operator_scrape_age_seconds",
            "Age of the oldest newest sample among a service's ready pods.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self.services = Gauge("inflight_operator_services", "Services known.", registry=self.registry)
        self.leader = Gauge("inflight_operator_leader", "1 while this process acts.", registry=self.registry)

    def forget(self, namespace: str, name: str) -> None:
        """Drops the series of a deleted service."""
        for gauge in (self.desired_replicas, self.scrape_age):
            gauge.remove_by_labels({"namespace": namespace, "name": name})

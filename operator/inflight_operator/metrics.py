"""What the operator tells about itself and its services, with Prometheus names `inflight_operator_*`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from inflight_operator.limits import Limits
from inflight_operator.observe.cache import ServiceKey


@dataclass(frozen=True, slots=True)
class Shown:
    """What a round shows of one service.

    Attributes:
        desired: replicas the operator finds right; in scaling.mode External only an opinion.
        replicas: replicas ordered.
        ready: pods that take requests.
        waiting, running: requests, over all pods.
        kv_utilization: share of the KV cache in use, 0 to 1, the mean of pods.
        limits: in force.
        scrape_age: seconds since the stalest pod's newest sample.
    """

    desired: int
    replicas: int
    ready: int
    waiting: int
    running: int
    kv_utilization: float
    limits: Limits
    scrape_age: float


_GAUGES: tuple[tuple[str, str, Callable[[Shown], float]], ...] = (
    (
        "inflight_operator_desired_replicas",
        "Replicas the operator finds right; in scaling.mode External only its reader acts on it.",
        lambda shown: shown.desired,
    ),
    ("inflight_operator_service_replicas", "Replicas ordered.", lambda shown: shown.replicas),
    ("inflight_operator_service_ready_replicas", "Pods that take requests.", lambda shown: shown.ready),
    ("inflight_operator_service_waiting_requests", "Requests waiting, over all pods.", lambda shown: shown.waiting),
    ("inflight_operator_service_running_requests", "Requests running, over all pods.", lambda shown: shown.running),
    (
        "inflight_operator_service_kv_utilization",
        "Share of the KV cache in use, 0 to 1, the mean of pods.",
        lambda shown: shown.kv_utilization,
    ),
    (
        "inflight_operator_service_max_num_seqs",
        "Limit in force: most requests an engine runs at once.",
        lambda shown: shown.limits.max_num_seqs,
    ),
    (
        "inflight_operator_service_max_num_batched_tokens",
        "Limit in force: most tokens an engine computes in one step.",
        lambda shown: shown.limits.max_num_batched_tokens,
    ),
    (
        "inflight_operator_scrape_age_seconds",
        "Age of the oldest newest sample among a service's ready pods.",
        lambda shown: shown.scrape_age,
    ),
)


class OperatorMetrics:
    """All metrics of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "inflight_operator_reconcile",
            "Rounds for one service, by how they ended.",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "inflight_operator_reconcile_duration_seconds",
            "How long a round for one service took.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.decisions = Counter(
            "inflight_operator_decisions",
            "Changes decided on, by kind (Scaling, Tuning) and reason.",
            ["kind", "reason"],
            registry=self.registry,
        )
        self.services = Gauge("inflight_operator_services", "Services known.", registry=self.registry)
        self.leader = Gauge("inflight_operator_leader", "1 while this process acts.", registry=self.registry)
        self._gauges = [
            (Gauge(name, text, ["namespace", "name"], registry=self.registry), of) for name, text, of in _GAUGES
        ]
        self._shown: dict[ServiceKey, Shown] = {}

    def show(self, key: ServiceKey, shown: Shown) -> None:
        """Sets the gauges of a service to what its round found."""
        if self._shown.get(key) == shown:
            return
        self._shown[key] = shown
        for gauge, of in self._gauges:
            gauge.labels(*key).set(of(shown))

    def forget(self, key: ServiceKey) -> None:
        """Drops the series of a deleted service."""
        if self._shown.pop(key, None) is not None:
            for gauge, _ in self._gauges:
                gauge.remove(*key)

    def count_scrapes(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Exports scrapes done and failed since the start, as `counts` tells them."""
        self.registry.register(_Scrapes(counts))


class _Scrapes(Collector):
    def __init__(self, counts: Callable[[], tuple[int, int]]) -> None:
        self._counts = counts

    def collect(self) -> list[CounterMetricFamily]:
        family = CounterMetricFamily(
            "inflight_operator_scrapes", "Scrapes of engines, by how they ended.", labels=["result"]
        )
        for result, count in zip(("done", "failed"), self._counts(), strict=True):
            family.add_metric([result], count)
        return [family]

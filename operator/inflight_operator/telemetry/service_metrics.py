"""Metrics of each service, `inflight_operator_service_*`: collected on each scrape.

Series of one service have the labels `namespace` and `name`; they end when it is deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from inflight_base.manifest.engines import INFLIGHT
from inflight_base.manifest.keys import ServiceKey
from inflight_operator.decide.decision import Decision
from inflight_operator.decide.replicas.autopilot import Sizing
from inflight_operator.decide.replicas.start_up import Phases
from inflight_operator.decide.status.conditions import Finding
from inflight_operator.observe.attainment import Attainment
from inflight_operator.observe.gateway_view import GatewayView
from inflight_settings.limits import Limits


@dataclass(frozen=True, slots=True)
class ServiceValues:
    """Values of one service after a round.

    Attributes:
        desired: replicas the operator recommends; not applied in scaling.mode External.
        replicas: replicas ordered.
        ready: pods that take requests.
        unmeasured: ready pods whose newest sample is missing or stale.
        blocked: replicas that will not become ready without intervention.
        waiting: requests, at the gateway and in all pods. running: requests, over all pods.
        kv_utilization: share of the KV cache in use, 0 to 1, the mean of pods that report it; None if none does.
        preemptions_per_minute: preemptions per minute, over all pods.
        limits: limits in force; None where the operator does not know those of the engines.
        overridden: True while limits set by hand are in force.
        modelled: the limits that the cost model found best; None without a result.
        scrape_age: seconds since the stalest pod's newest sample.
        ttft_target, tpot_target: seconds, for the 95th percentiles.
        sizing: demand against capacity; None while no cost model sizes it.
        cost_per_hour: cost of the existing pods; None without a price.
        currency: currency of the price; empty if unknown.
        gateway: reports of the gateway's pods; None for a service that is not behind the gateway.
        lead_time: expected start of a replica; None before any start is known.
        loading_left: seconds that the slowest of the engines that read their model for long has left; 0 without
            one, None where its rate is not known yet.
        asleep: True while the service is scaled to zero; None for one that never is.
        engine: kind of the engines (`EngineType.kind`).
    """

    desired: int
    replicas: int
    ready: int
    unmeasured: int
    blocked: int
    waiting: int
    running: int
    kv_utilization: float | None
    preemptions_per_minute: float
    limits: Limits | None
    overridden: bool
    scrape_age: float
    ttft_target: float
    tpot_target: float
    sizing: Sizing | None = None
    cost_per_hour: float | None = None
    currency: str = ""
    modelled: Limits | None = None
    gateway: GatewayView | None = None
    asleep: bool | None = None
    lead_time: Phases | None = None
    loading_left: float | None = None
    engine: str = INFLIGHT


GAUGES = (
    (
        "inflight_operator_desired_replicas",
        "Replicas that the operator recommends. In scaling.mode External another scaler decides.",
        "desired",
    ),
    ("inflight_operator_service_replicas", "Replicas ordered.", "replicas"),
    ("inflight_operator_service_ready_replicas", "Pods that take requests.", "ready"),
    ("inflight_operator_service_unmeasured_replicas", "Ready pods without recent metrics.", "unmeasured"),
    (
        "inflight_operator_service_blocked_replicas",
        "Replicas that will not become ready without intervention.",
        "blocked",
    ),
    (
        "inflight_operator_service_waiting_requests",
        "Waiting requests: at the gateway, and in engines over all pods.",
        "waiting",
    ),
    ("inflight_operator_service_running_requests", "Running requests, over all pods.", "running"),
    ("inflight_operator_service_kv_utilization", "KV cache in use, 0 to 1, mean of the pods.", "kv_utilization"),
    (
        "inflight_operator_service_preemptions_per_minute",
        "Preempted requests per minute, over all pods.",
        "preemptions_per_minute",
    ),
    (
        "inflight_operator_service_max_num_seqs",
        "Limit in force: requests that an engine runs at once.",
        "limits.max_num_seqs",
    ),
    (
        "inflight_operator_service_max_num_batched_tokens",
        "Limit in force: tokens that an engine computes in one step.",
        "limits.max_num_batched_tokens",
    ),
    (
        "inflight_operator_service_limits_overridden",
        "1 while limits set by hand (spec.tuning.override) are in force and tuning is paused.",
        "overridden",
    ),
    (
        "inflight_operator_service_model_max_num_seqs",
        "The max_num_seqs that is best by the cost model, within the bounds of tuning.",
        "modelled.max_num_seqs",
    ),
    (
        "inflight_operator_service_model_max_num_batched_tokens",
        "The max_num_batched_tokens that is best by the cost model, within the bounds of tuning.",
        "modelled.max_num_batched_tokens",
    ),
    (
        "inflight_operator_service_ttft_target_seconds",
        "Target of the 95th percentile of time to first token, for a prompt of the mean length.",
        "ttft_target",
    ),
    (
        "inflight_operator_service_tpot_target_seconds",
        "Target of the 95th percentile of time per output token.",
        "tpot_target",
    ),
    (
        "inflight_operator_service_demand_requests_per_second",
        "Requests per second expected when a replica ordered now is ready.",
        "sizing.rate",
    ),
    (
        "inflight_operator_service_replica_requests_per_second",
        "Requests per second that one replica sustains by the cost model, within the targets if it can keep them.",
        "sizing.each",
    ),
    (
        "inflight_operator_service_needed_replicas",
        "Replicas that the expected demand needs, without margin.",
        "sizing.need",
    ),
    (
        "inflight_operator_service_held_requests",
        "Those of the waiting requests that are at the gateway; with spec.gateway.enabled.",
        "gateway.held",
    ),
    (
        "inflight_operator_service_held_prompt_tokens",
        "Estimated prompt tokens of the requests that wait at the gateway.",
        "gateway.held_prompt_tokens",
    ),
    (
        "inflight_operator_service_oldest_held_seconds",
        "Seconds that the oldest request at the gateway has waited; 0 without any.",
        "gateway.oldest_held_s",
    ),
    (
        "inflight_operator_service_asleep",
        "1 while the service is scaled to zero; with spec.scaling.minReplicas 0.",
        "asleep",
    ),
    (
        "inflight_operator_service_loading_left_seconds",
        "Seconds until the slowest engine that reads its model for long has read it, at its mean rate; 0 without one.",
        "loading_left",
    ),
    ("inflight_operator_scrape_age_seconds", "Seconds since the stalest ready pod was last scraped.", "scrape_age"),
)
"""Name, help text, and the value's path in `ServiceValues`; no series where a part of the path is None."""

COUNTERS = (
    ("inflight_operator_service_first_tokens", "First tokens of requests; with spec.slo.", "ttft.total"),
    (
        "inflight_operator_service_first_tokens_in_target",
        "First tokens within the TTFT target, interpolated from the engines' histograms.",
        "ttft.within",
    ),
    ("inflight_operator_service_outputs", "Finished requests of two tokens or more; with spec.slo.", "tpot.total"),
    (
        "inflight_operator_service_outputs_in_target",
        "Finished requests within the TPOT target, interpolated from the engines' histograms.",
        "tpot.within",
    ),
)
"""Name, help text, and the value's path in `Attainment`."""

_LABELS = ("namespace", "name")


@dataclass(slots=True)
class _Service:
    """State of one service.

    Attributes:
        findings: all conditions.
        values: None before its spec could be read.
        attainment: None without targets in its spec.
        decisions: number since the start of this process, by kind and reason.
        last: the last decision on each knob, and its time in seconds since the epoch.
    """

    findings: tuple[Finding, ...] = ()
    values: ServiceValues | None = None
    attainment: Attainment | None = None
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)
    last: dict[str, tuple[Decision, float]] = field(default_factory=dict)

    def finding(self, kind: str) -> Finding | None:
        """The condition of a type; None if there is none yet."""
        return next((one for one in self.findings if one.type == kind), None)

    @property
    def stuck(self) -> bool:
        """True if a rollout is stuck without intervention."""
        progressing = self.finding("Progressing")
        return progressing is not None and progressing.status == "False" and progressing.reason != "Complete"


class ServiceMetrics(Collector):
    """The services of one operator process."""

    def __init__(self) -> None:
        self._services: dict[ServiceKey, _Service] = {}

    def record(
        self,
        key: ServiceKey,
        values: ServiceValues,
        findings: tuple[Finding, ...],
        attainment: Attainment | None,
        decisions: Sequence[Decision],
        at: float,
    ) -> None:
        """Records the result of a round.

        Args:
            findings: all conditions.
            attainment: counts of the service until now; None without targets in its spec.
            decisions: decisions of this round.
            at: time of the round, seconds since the epoch.
        """
        service = self._services.setdefault(key, _Service())
        service.values, service.findings, service.attainment = values, findings, attainment
        for one in decisions:
            service.decisions[one.kind, one.reason.code] += 1
            service.last[one.knob] = one, at

    def record_unreadable(self, key: ServiceKey, findings: tuple[Finding, ...]) -> None:
        """Conditions of a service whose spec cannot be read: its numbers, if any, are unchanged."""
        self._services.setdefault(key, _Service()).findings = findings

    def forget(self, key: ServiceKey) -> None:
        """Removes the series of a deleted service."""
        self._services.pop(key, None)

    def collect(self) -> Iterator[Metric]:
        """All families; prometheus_client calls it from its own thread."""
        services = list(self._services.items())
        read = [(key, one, one.values) for key, one in services if one.values is not None]
        for name, text, path in GAUGES:
            yield _gauges(name, text, (), [(key, (), _value(values, path)) for key, _, values in read])
        for name, text, path in COUNTERS:
            yield _counters(name, text, (), [(key, (), _value(one.attainment, path)) for key, one, _ in read])
        yield _counters(
            "inflight_operator_service_decisions",
            "Changes of replicas (Scaling) and of limits (Tuning).",
            ("kind", "reason"),
            [(key, labels, count) for key, one, _ in read for labels, count in tuple(one.decisions.items())],
        )
        yield _gauges(
            "inflight_operator_service_last_decision_timestamp_seconds",
            "Time of the last decision on each knob (replicas and limits), with its values and reason.",
            ("kind", "knob", "from", "to", "reason"),
            [
                (key, (last.kind, last.knob, str(last.frm), str(last.to), last.reason.code), at)
                for key, one, _ in read
                for last, at in tuple(one.last.values())
            ],
        )
        yield _gauges(
            "inflight_operator_service_rollout_stuck",
            "1 while a rollout cannot continue without intervention.",
            (),
            [(key, (), one.stuck) for key, one in services],
        )
        yield _gauges(
            "inflight_operator_service_state",
            "1 for the reason of the condition Ready, such as Serving or Loading. engine: inflight, vllm, vllm-plain "
            "(without the plugin) or custom; inflight before the spec could be read.",
            ("state", "engine"),
            [
                (key, (ready.reason, INFLIGHT if one.values is None else one.values.engine), 1)
                for key, one in services
                if (ready := one.finding("Ready")) is not None
            ],
        )
        yield _gauges(
            "inflight_operator_service_start_up_seconds",
            "Lead time of a new replica by phase, as learned: scheduled, image, weights, engine, endpoints.",
            ("phase",),
            [
                (key, (phase,), seconds)
                for key, _, values in read
                if values.lead_time is not None
                for phase, seconds in values.lead_time._asdict().items()
            ],
        )
        yield _gauges(
            "inflight_operator_service_cost_per_hour",
            "Cost per hour of the pods; with spec.cost.",
            ("currency",),
            [(key, (values.currency,), values.cost_per_hour) for key, _, values in read],
        )


def _value(of: object, path: str) -> Any:
    """Returns the value at the path; None where a part of the path is None."""
    for name in path.split("."):
        of = None if of is None else getattr(of, name)
    return of


_Rows = Iterable[tuple[ServiceKey, tuple[str, ...], float | None]]
"""A service, values of further labels, and the value; None: no series."""


def _gauges(name: str, text: str, labels: Sequence[str], rows: _Rows) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=(*_LABELS, *labels))
    for values, value in _known(rows):
        family.add_metric(values, value)
    return family


def _counters(name: str, text: str, labels: Sequence[str], rows: _Rows) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=(*_LABELS, *labels))
    for values, value in _known(rows):
        family.add_metric(values, value)
    return family


def _known(rows: _Rows) -> Iterator[tuple[tuple[str, ...], float]]:
    """Values of all labels, and the value, of the rows that have one."""
    return (((*key, *more), value) for key, more, value in rows if value is not None)

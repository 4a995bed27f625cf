"""Metrics of each service, `inflight_operator_service_*`: collected on each scrape.

Series of one service have the labels `namespace` and `name`; they end when it is deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from inflight_base.manifest.keys import ServiceKey
from inflight_operator.decide.conditions import Finding
from inflight_operator.decide.decision import Decision
from inflight_operator.observe.attainment import Attainment
from inflight_operator.telemetry.service_numbers import COUNTERS, GAUGES, Shown

_LABELS = ("namespace", "name")


@dataclass(slots=True)
class _Service:
    """State of one service.

    Attributes:
        findings: all conditions.
        shown: None before its spec could be read.
        attainment: None without targets in its spec.
        decisions: since the start of this process, by kind and reason.
        last: the last decision on each knob, and its time in seconds since the epoch.
    """

    findings: tuple[Finding, ...] = ()
    shown: Shown | None = None
    attainment: Attainment | None = None
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)
    last: dict[str, tuple[Decision, float]] = field(default_factory=dict)

    def finding(self, kind: str) -> Finding | None:
        """The condition of a type; None if there is none yet."""
        return next((one for one in self.findings if one.type == kind), None)

    @property
    def stuck(self) -> bool:
        """Whether a rollout is stuck without intervention."""
        progressing = self.finding("Progressing")
        return progressing is not None and progressing.status == "False" and progressing.reason != "Complete"


class ServiceMetrics(Collector):
    """The services of one operator process."""

    def __init__(self) -> None:
        self._services: dict[ServiceKey, _Service] = {}

    def show(
        self,
        key: ServiceKey,
        shown: Shown,
        findings: tuple[Finding, ...],
        attainment: Attainment | None,
        decisions: Sequence[Decision],
        at: float,
    ) -> None:
        """Records the result of a round.

        Args:
            findings: all conditions.
            attainment: of the service until now; None without targets in its spec.
            decisions: of this round.
            at: time of the round, seconds since the epoch.
        """
        service = self._services.setdefault(key, _Service())
        service.shown, service.findings, service.attainment = shown, findings, attainment
        service.decisions.update((one.kind, one.reason.code) for one in decisions)
        service.last |= {one.knob: (one, at) for one in decisions}

    def show_unreadable(self, key: ServiceKey, findings: tuple[Finding, ...]) -> None:
        """Conditions of a service whose spec cannot be read: its numbers, if any, are unchanged."""
        self._services.setdefault(key, _Service()).findings = findings

    def forget(self, key: ServiceKey) -> None:
        """Removes the series of a deleted service."""
        self._services.pop(key, None)

    def collect(self) -> Iterator[Metric]:
        """All families; prometheus_client calls it from its own thread."""
        services = list(self._services.items())
        read = [(key, one, one.shown) for key, one in services if one.shown is not None]
        for name, text, of in GAUGES:
            yield _gauges(name, text, (), [(key, (), of(shown)) for key, _, shown in read])
        for name, text, count in COUNTERS:
            rows = [(key, (), count(one.attainment)) for key, one, _ in read if one.attainment is not None]
            yield _counters(name, text, (), rows)
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
            "1 for the reason of the condition Ready, such as Serving or Loading.",
            ("state",),
            [(key, (ready.reason,), 1) for key, one in services if (ready := one.finding("Ready")) is not None],
        )
        yield _gauges(
            "inflight_operator_service_cost_per_hour",
            "Cost per hour of the pods; with spec.cost.",
            ("currency",),
            [(key, (shown.currency,), shown.cost_per_hour) for key, _, shown in read],
        )


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

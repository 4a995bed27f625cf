"""What /metrics shows of service classes: how many wait, and how many kept the targets of their class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from inflight_engine.request import FinishReason
from inflight_engine.scheduling.config import ServiceClass
from inflight_engine.server.generation import Generation


class ClassCounts:
    """Counters of one class, of requests that ended, those whose client left before that not among them."""

    def __init__(self, service_class: ServiceClass) -> None:
        self.service_class = service_class
        self.finished = self.ttft_met = self.tpot_met = 0

    def count(self, generation: Generation) -> None:
        """`generation` has just ended."""
        if generation.finish_reason is FinishReason.ABORT:
            return
        self.finished += 1
        ttft, tpot = generation.time_to_first_token, generation.time_per_output_token
        self.ttft_met += _within(ttft, self.service_class.ttft_target)
        self.tpot_met += _within(tpot, self.service_class.tpot_target)


def _within(seconds: float | None, target: float | None) -> bool:
    return seconds is not None and target is not None and seconds <= target


def class_families(model_name: str, counts: Sequence[ClassCounts], waiting: Mapping[str, int]) -> Iterator[Metric]:
    """`waiting`: requests of each class that were never admitted."""
    labels = ("model_name", "class")
    gauge = GaugeMetricFamily(
        "inflight_class_requests_waiting", "Requests of the class that wait for their first slot.", labels=labels
    )
    finished = CounterMetricFamily(
        "inflight_class_requests_finished",
        "Requests of the class that ended, those whose client left not counted.",
        labels=labels,
    )
    ttft = CounterMetricFamily(
        "inflight_class_ttft_met", "Of those, how many got their first token within the class's target.", labels=labels
    )
    tpot = CounterMetricFamily(
        "inflight_class_tpot_met",
        "Of those, how many of at least two tokens got them within the class's target for the mean time per token.",
        labels=labels,
    )
    for one in counts:
        label = (model_name, one.service_class.name)
        gauge.add_metric(label, waiting[one.service_class.name])
        finished.add_metric(label, one.finished)
        if one.service_class.ttft_target is not None:
            ttft.add_metric(label, one.ttft_met)
        if one.service_class.tpot_target is not None:
            tpot.add_metric(label, one.tpot_met)
    for family in (gauge, finished, ttft, tpot):
        if family.samples:
            yield family

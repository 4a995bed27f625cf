"""Metrics of service classes: waiting requests, and requests that met the targets of their class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inflight_engine.request import FinishReason
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.telemetry.families import Families
from inflight_settings.scheduling import ServiceClass


class ClassCounts:
    """Counters of the requests of one class that ended, excluding aborted requests.

    Args:
        ttft_per_token: seconds that each token of a prompt adds to the class's target.
    """

    def __init__(self, service_class: ServiceClass, ttft_per_token: float = 0.0) -> None:
        self.service_class = service_class
        self._ttft_per_token = ttft_per_token
        self.finished = self.ttft_met = self.tpot_met = 0

    def count(self, generation: Generation) -> None:
        """`generation` has just ended."""
        if generation.finish_reason is FinishReason.ABORT:
            return
        self.finished += 1
        ttft, tpot = generation.time_to_first_token, generation.time_per_output_token
        target = self.service_class.ttft_target
        if target is not None:
            target += self._ttft_per_token * len(generation.request.prompt_token_ids)
        self.ttft_met += _within(ttft, target)
        self.tpot_met += _within(tpot, self.service_class.tpot_target)


def _within(seconds: float | None, target: float | None) -> bool:
    return seconds is not None and target is not None and seconds <= target


def class_families(page: Families, counts: Sequence[ClassCounts], waiting: Mapping[str, int]) -> None:
    """Add the families of classes. `waiting`: requests of each class that were never admitted."""
    named = [(one, (one.service_class.name,)) for one in counts]
    labels = ("class",)
    page.gauges(
        "inflight_class_requests_waiting",
        "Requests of the class waiting for their first slot.",
        labels,
        [(name, waiting[one.service_class.name]) for one, name in named],
    )
    page.counters(
        "inflight_class_requests_finished",
        "Finished requests of the class, excluding aborted requests.",
        labels,
        [(name, one.finished) for one, name in named],
    )
    page.counters(
        "inflight_class_ttft_met",
        "Finished requests of the class whose time to first token was within the target of the class.",
        labels,
        [(name, one.ttft_met) for one, name in named if one.service_class.ttft_target is not None],
    )
    page.counters(
        "inflight_class_tpot_met",
        "Finished requests of the class, of at least two tokens, whose time per output token was within the target.",
        labels,
        [(name, one.tpot_met) for one, name in named if one.service_class.tpot_target is not None],
    )

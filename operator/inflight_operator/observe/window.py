"""Recent samples of a service's pods, and rates, percentiles and means over a span.

Pods are kept by uid: a replacement pod with the same name starts a new history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from inflight_base.page.histogram import Histogram, summed
from inflight_operator.observe.history import Gauges, History, PodSpan
from inflight_operator.observe.metrics import Sample


@dataclass(frozen=True, slots=True)
class Window:
    """Histories of the pods of one service, by uid. Memory is bounded for each pod, independent of the number of
    samples.

    Attributes:
        span: seconds; a pod without a sample for longer is not in the window.
        pods: pods with a sample.
    """

    span: float = 30.0
    pods: Mapping[str, History] = field(default_factory=dict)

    def with_samples(self, samples: Mapping[str, Sample], alive: Collection[str], now: float) -> Window:
        """This window with one new sample each for the given uids, without pods that are no longer `alive` or had no
        sample for too long."""
        pods = {}
        for uid in alive:
            known, new = self.pods.get(uid), samples.get(uid)
            if new is not None:
                pods[uid] = History.of(new) if known is None else known.with_sample(new, self.span)
            elif known is not None and now - known.newest.time <= self.span:
                pods[uid] = known
        return replace(self, pods=pods)

    def oldest_age(self, now: float) -> float:
        """Seconds since the stalest pod's newest sample; 0 without samples."""
        return max((now - pod.newest.time for pod in self.pods.values()), default=0.0)

    def since(self, start: float) -> Span:
        """Growth after `start`; `History.since` documents the precision."""
        return Span(tuple(pod.since(start) for pod in self.pods.values()))


@dataclass(frozen=True, slots=True)
class Span:
    """Growth of several pods over the same time."""

    pods: tuple[PodSpan, ...]

    @property
    def seconds(self) -> float:
        """The longest time span covered by a pod."""
        return max((pod.seconds for pod in self.pods), default=0.0)

    def histogram(self, of: Callable[[PodSpan], Histogram]) -> Histogram:
        """Observations within the span, summed over pods."""
        return summed(of(pod) for pod in self.pods)

    def increase(self, of: Callable[[PodSpan], float]) -> float:
        """Growth of a counter within the span, summed over pods."""
        return sum(of(pod) for pod in self.pods)

    def rate(self, of: Callable[[PodSpan], float]) -> float:
        """`increase` per second."""
        return self.increase(of) / self.seconds if self.seconds > 0 else 0.0

    def mean_per_pod(self, of: Callable[[Gauges], float | None]) -> float | None:
        """Mean of a gauge over time and pods; None if no sample has it."""
        reported = [value for value in (of(pod.mean) for pod in self.pods) if value is not None]
        return sum(reported) / len(reported) if reported else None

    def peak(self, of: Callable[[Gauges], float]) -> float:
        """The largest value of a gauge over time and pods; 0 without samples."""
        return max((of(pod.peak) for pod in self.pods), default=0.0)

    def largest_now(self, of: Callable[[Sample], float]) -> float:
        """The largest newest value of a gauge over pods; 0 without samples."""
        return max((of(pod.newest) for pod in self.pods), default=0.0)

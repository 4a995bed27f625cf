"""A sliding window of samples per pod, and what it shows over a span: rates, percentiles, means.

Pods are kept by uid: a pod that comes back under the same name starts anew. Counters and buckets are differenced scrape
by scrape, so a restarted process (its counters begin at zero again) loses at most what happened between two scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from inflight_operator.observe.histogram import Histogram, summed
from inflight_operator.observe.metrics import Sample

Samples = tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of the pods of one service, oldest first, no older than `span` seconds."""

    span: float = 30.0
    pods: Mapping[str, Samples] = field(default_factory=dict)

    def with_samples(self, samples: Mapping[str, Sample], alive: Collection[str], now: float) -> Window:
        """This window with one new sample each for the given uids, without pods that are not `alive` any more and
        without what is too old."""
        pods = {}
        for uid in alive:
            kept = tuple(one for one in self.pods.get(uid, ()) if now - one.time <= self.span)
            new = samples.get(uid)
            pods[uid] = kept if new is None else (*kept, new)
        return replace(self, pods=pods)

    def latest(self, now: float, max_age: float) -> dict[str, Sample]:
        """The newest sample of each pod that is not older than `max_age` seconds."""
        newest = {uid: samples[-1] for uid, samples in self.pods.items() if samples}
        return {uid: sample for uid, sample in newest.items() if now - sample.time <= max_age}

    def oldest_age(self, now: float) -> float:
        """Seconds since the stalest pod's newest sample; 0 without samples."""
        return max((now - samples[-1].time for samples in self.pods.values() if samples), default=0.0)

    def since(self, start: float) -> Span:
        """What happened after `start`. The last sample up to it is the base that differences are taken from."""
        return Span(tuple(_from(samples, start) for samples in self.pods.values() if samples))


def _from(samples: Samples, start: float) -> Samples:
    before = [one for one in samples if one.time <= start]
    return (*before[-1:], *(one for one in samples if one.time > start))


@dataclass(frozen=True, slots=True)
class Span:
    """Samples of several pods over the same time."""

    pods: tuple[Samples, ...]

    @property
    def seconds(self) -> float:
        """How long the longest watched pod was watched."""
        return max((samples[-1].time - samples[0].time for samples in self.pods if samples), default=0.0)

    def histogram(self, of: Callable[[Sample], Histogram]) -> Histogram:
        """Observations within the span, summed over pods."""
        return summed(of(now).since(of(was)) for samples in self.pods for was, now in pairwise(samples))

    def increase(self, of: Callable[[Sample], float]) -> float:
        """Growth of a counter within the span, summed over pods; a fall is a restart from zero."""
        steps = ((of(was), of(now)) for samples in self.pods for was, now in pairwise(samples))
        return sum(now - was if now >= was else now for was, now in steps)

    def rate(self, of: Callable[[Sample], float]) -> float:
        """`increase` per second."""
        return self.increase(of) / self.seconds if self.seconds > 0 else 0.0

    def mean_per_pod(self, of: Callable[[Sample], float | None]) -> float | None:
        """Mean of a gauge over time and pods, without the base sample; None when no sample tells."""
        means = []
        for samples in self.pods:
            told = [value for value in map(of, samples[1:] or samples) if value is not None]
            if told:
                means.append(sum(told) / len(told))
        return sum(means) / len(means) if means else None

    def peak(self, of: Callable[[Sample], float]) -> float:
        """The largest value of a gauge over time and pods, without the base sample; 0 without samples."""
        return max((of(one) for samples in self.pods for one in samples[1:] or samples), default=0.0)

    def largest_now(self, of: Callable[[Sample], float]) -> float:
        """The largest newest value of a gauge over pods; 0 without samples."""
        return max((of(samples[-1]) for samples in self.pods if samples), default=0.0)

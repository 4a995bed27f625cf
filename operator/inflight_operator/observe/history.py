"""History of one pod in bounded memory: its newest sample and a few packed snapshots of earlier ones.

All numbers of a snapshot are cumulative (counters, buckets, and the sums of gauges over all samples so far), so the
change between two samples is one subtraction, however many samples lie between them. Recent snapshots are all kept, of
older ones every second, then every fourth and every eighth: `History.since` documents the resulting precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate, chain
from operator import add, attrgetter, lt, sub
from struct import Struct
from typing import Any, get_type_hints

from inflight_base.page.histogram import Histogram
from inflight_operator.observe.metrics import Counters, Sample

NEWEST = 6
"""Number of newest samples that are all kept."""

SPARSEST = 8
"""Largest distance between kept snapshots: of the oldest, every eighth is kept."""

MAX_SNAPSHOTS = 14
"""Maximum number of snapshots beside the newest sample."""

SPACING = 1 / 20
"""Minimum time between two snapshots, as a share of the window's span: with it the snapshots reach back for the whole
span, however frequent the scrapes are."""

_WORD = 2**32
"""Modulus of the bucket counts of snapshots: a difference is exact while fewer observations lie between."""

Numbers = Sequence[float]


@dataclass(frozen=True, slots=True)
class Gauges:
    """Mean or peak of gauges over several samples; named as in `Sample`."""

    running: float
    waiting: float
    kv_usage: float | None
    waiting_prompt_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpan(Counters):
    """Growth of one pod's metrics between two of its samples.

    Attributes:
        samples: number of samples, both ends included; with one sample all growth is 0.
        seconds: between both ends.
        mean, peak: mean and peak of gauges, without the first sample unless it is the only one.
        newest: the sample at the end.
    """

    samples: int
    seconds: float
    mean: Gauges
    peak: Gauges
    newest: Sample


_COUNTERS = [name for name, of in get_type_hints(Counters).items() if of is float]
_HISTOGRAMS = [name for name, of in get_type_hints(Counters).items() if of is Histogram]
_GAUGES = [one.name for one in fields(Gauges)]

_counters, _histograms, _gauges = attrgetter(*_COUNTERS), attrgetter(*_HISTOGRAMS), attrgetter(*_GAUGES)

_NUMBER, _TIME = 0, 1
_TOTALS = slice(2, 2 + len(_COUNTERS) + len(_HISTOGRAMS))
_SUMS = slice(_TOTALS.stop, _TOTALS.stop + len(_GAUGES) + 2)
_PEAKS = slice(_SUMS.stop, _SUMS.stop + len(_GAUGES))
_COUNTS = slice(_PEAKS.stop, None)
"""Layout of a snapshot: its number; the time of its sample; counters and histogram totals; sums of gauges over all
samples until then (see `_summands`); peaks of gauges since the snapshot before; bucket counts of all histograms."""

_HEAD = Struct("<2d")
_SUMS_PACKED = Struct(f"<{_SUMS.stop - _SUMS.start}d")
_PEAKS_PACKED, _PEAKS_OFFSET = Struct(f"<{len(_GAUGES)}d"), _PEAKS.start * 8


@dataclass(frozen=True, slots=True)
class History:
    """Samples of one pod; immutable. `History.of` begins one.

    Attributes:
        newest: the last sample.
        older: snapshots of earlier samples, oldest first.
        number: number of the next snapshot.
        sums: sums of gauges over all samples, including the newest.
        peaks: peaks of gauges over the samples after the last snapshot.
    """

    newest: Sample
    older: tuple[bytes, ...]
    number: int
    sums: bytes
    peaks: bytes

    @classmethod
    def of(cls, sample: Sample) -> History:
        """Returns a history of one sample."""
        return cls(sample, (), 0, _SUMS_PACKED.pack(*_summands(sample)), _PEAKS_PACKED.pack(*_numbers(sample)))

    def with_sample(self, sample: Sample, span: float) -> History:
        """This history with one more sample, not older than the newest.

        A decreased counter or bucket means that the engine process restarted: it counts from zero again, and earlier
        growth stays in the differences. A sample more than `span` seconds after the last one, or with other bucket
        bounds (another version of the engine), begins a new history.
        """
        was = self.newest
        if sample.time - was.time > span or _bounds(sample) != _bounds(was):
            return History.of(sample)
        older, number, peaks = self.older, self.number, _numbers(sample)
        if not older or was.time - _HEAD.unpack_from(older[-1])[_TIME] >= span * SPACING:
            older = _thinned((*older, self._snapshot()), number)
            number += 1
        else:
            peaks = [max(pair) for pair in zip(peaks, _PEAKS_PACKED.unpack(self.peaks), strict=True)]
        if _restarted(was, sample):
            older = tuple(_rebased(snapshot, was) for snapshot in older)
        sums = map(add, _SUMS_PACKED.unpack(self.sums), _summands(sample))
        return History(sample, older, number, _SUMS_PACKED.pack(*sums), _PEAKS_PACKED.pack(*peaks))

    def since(self, start: float) -> PodSpan:
        """Growth after `start`: the difference to the last snapshot taken at `start` or before, or to the oldest one if
        all are younger.

        The difference is exact, but may begin early: by less than one scrape interval when `start` lies within the
        last `NEWEST - 1` of them, else by less than two thirds of the time since `start`. Snapshots reach back 39 to 47
        scrape intervals. If scrapes are more frequent than `SPACING`, `SPACING` replaces their interval.
        """
        if self.newest.time <= start or not self.older:
            return self._alone()
        base = 0
        for index in range(len(self.older) - 1, 0, -1):
            if _HEAD.unpack_from(self.older[index])[_TIME] <= start:
                base = index
                break
        was = _unpacked(self.older[base])
        newest, bounds = self.newest, _bounds(self.newest)
        totals = [max(0.0, grown) for grown in map(sub, _totals(newest), was[_TOTALS])]
        counts = [grown % _WORD for grown in map(sub, _counts(newest), was[_COUNTS])]
        ends = accumulate(map(len, bounds))
        grown: dict[str, Any] = dict(zip(_COUNTERS, totals, strict=False))
        for name, edges, end, total in zip(_HISTOGRAMS, bounds, ends, totals[len(_COUNTERS) :], strict=True):
            grown[name] = Histogram(edges, counts[end - len(edges) : end], total)
        samples, *sums, prompt_tokens, reported = map(sub, _SUMS_PACKED.unpack(self.sums), was[_SUMS])
        peaks = [_PEAKS_PACKED.unpack_from(snapshot, _PEAKS_OFFSET) for snapshot in self.older[base + 1 :]]
        means: list[Any] = [*(total / samples for total in sums), prompt_tokens / reported if reported else None]
        most: list[Any] = list(map(max, zip(_PEAKS_PACKED.unpack(self.peaks), *peaks, strict=True)))
        if not reported:
            most[-1] = None
        return PodSpan(
            **grown,
            samples=int(samples) + 1,
            seconds=newest.time - was[_TIME],
            mean=Gauges(*means),
            peak=Gauges(*most),
            newest=newest,
        )

    def _alone(self) -> PodSpan:
        gauges = Gauges(*_gauges(self.newest))
        return PodSpan(samples=1, seconds=0.0, mean=gauges, peak=gauges, newest=self.newest)

    def _snapshot(self) -> bytes:
        """Returns the newest sample, packed."""
        counts = [int(count) for count in _counts(self.newest)]
        if max(counts, default=0) >= _WORD:
            counts = [count % _WORD for count in counts]
        sums, peaks = _SUMS_PACKED.unpack(self.sums), _PEAKS_PACKED.unpack(self.peaks)
        return _packing(len(counts)).pack(self.number, self.newest.time, *_totals(self.newest), *sums, *peaks, *counts)


def _bounds(sample: Sample) -> tuple[tuple[float, ...], ...]:
    return tuple(one.bounds for one in _histograms(sample))


def _counts(sample: Sample) -> Iterator[float]:
    return chain.from_iterable(one.counts for one in _histograms(sample))


def _totals(sample: Sample) -> Numbers:
    return *_counters(sample), *(one.total for one in _histograms(sample))


def _summands(sample: Sample) -> Numbers:
    """Returns the summands of a sample: 1, its gauges, and 1 if it reported its prompt tokens."""
    return 1, *_numbers(sample), sample.waiting_prompt_tokens is not None


def _numbers(sample: Sample) -> Numbers:
    return [value or 0 for value in _gauges(sample)]


def _restarted(was: Sample, now: Sample) -> bool:
    """Returns True if the engine process restarted. Totals of histograms are left out: sums of fractions over several
    label sets may fall by rounding."""
    if any(map(lt, _counters(now), _counters(was))):
        return True
    return any(map(lt, _counts(now), _counts(was)))


@lru_cache(maxsize=64)
def _packing(counts: int) -> Struct:
    return Struct(f"<{_COUNTS.start}d{counts}I")


def _unpacked(snapshot: bytes) -> tuple[float, ...]:
    return _packing((len(snapshot) - _COUNTS.start * 8) // 4).unpack(snapshot)


def _rebased(snapshot: bytes, was: Sample) -> bytes:
    """Returns a snapshot rebased onto a restarted process, where `was` is the last sample of the previous process."""
    numbers = _unpacked(snapshot)
    totals = map(sub, numbers[_TOTALS], _totals(was))
    counts = [(then - int(count)) % _WORD for then, count in zip(numbers[_COUNTS], _counts(was), strict=True)]
    return _packing(len(counts)).pack(*numbers[:2], *totals, *numbers[_SUMS], *numbers[_PEAKS], *counts)


def _thinned(snapshots: tuple[bytes, ...], newest: int) -> tuple[bytes, ...]:
    """Returns the snapshots without those that are too old for their number. Number 8 n is kept longest, then 4 n, 2 n,
    and odd ones. Peaks of a dropped snapshot are merged into the next one."""
    kept: list[bytes] = []
    gone: list[tuple[float, ...]] = []
    for snapshot in snapshots:
        number = int(_HEAD.unpack_from(snapshot)[_NUMBER])
        divisor = min(number & -number or SPARSEST, SPARSEST)
        if newest + 1 - number >= NEWEST * divisor:
            gone.append(_PEAKS_PACKED.unpack_from(snapshot, _PEAKS_OFFSET))
            continue
        if gone:
            merged = map(max, _PEAKS_PACKED.unpack_from(snapshot, _PEAKS_OFFSET), *gone)
            head, tail = snapshot[:_PEAKS_OFFSET], snapshot[_PEAKS_OFFSET + _PEAKS_PACKED.size :]
            snapshot = head + _PEAKS_PACKED.pack(*merged) + tail
            gone = []
        kept.append(snapshot)
    return tuple(kept)

"""History of one pod in bounded memory: its newest sample and a few packed snapshots of earlier ones.

All numbers of a snapshot are cumulative (counters, buckets, and the sums of gauges over all samples so far), so the
change between two samples is one subtraction, however many samples lie between them. Recent snapshots are all kept, of
older ones every second, then every fourth and every eighth: `History.since` documents the resulting precision. Most
buckets of two snapshots are equal or differ in one byte, so they are kept compressed, at a fifth of their size.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import chain
from operator import add, attrgetter, lt, sub
from struct import Struct
from typing import TYPE_CHECKING, Any, get_type_hints

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
_TOTALS_PACKED = Struct(f"<{_TOTALS.stop - _TOTALS.start}d")
_SUMS_PACKED = Struct(f"<{_SUMS.stop - _SUMS.start}d")
_PEAKS_PACKED, _PEAKS_OFFSET = Struct(f"<{len(_GAUGES)}d"), _PEAKS.start * 8

_FASTEST, _WINDOW_BITS, _MEMORY = 1, -13, 5
"""Level, window and memory of the compression, see zlib(3): it has no header, looks back over all snapshots, and works
in memory that the C library keeps at hand, not in 256 KiB of the kernel's each time."""

_USUAL_BYTES = 2**13
"""Bytes of all snapshots of an engine of our own."""


class Packed:
    """Snapshots one after the other, compressed."""

    __slots__ = ("_bytes",)

    def __init__(self, rows: bytes = b"") -> None:
        packer = zlib.compressobj(_FASTEST, zlib.DEFLATED, _WINDOW_BITS, _MEMORY)
        self._bytes = packer.compress(rows) + packer.flush() if rows else b""

    @property
    def rows(self) -> bytes:
        """Returns the snapshots as they were."""
        return zlib.decompress(self._bytes, _WINDOW_BITS, _USUAL_BYTES) if self._bytes else b""

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sys.getsizeof(self._bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packed) and other._bytes == self._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)


@dataclass(frozen=True, slots=True)
class History:
    """Samples of one pod; immutable. `History.of` begins one.

    Attributes:
        newest: the last sample.
        packed: snapshots of earlier samples, oldest first.
        number: number of the next snapshot.
        sums: sums of gauges over all samples, including the newest.
        peaks: peaks of gauges over the samples after the last snapshot.
    """

    newest: Sample
    packed: Packed
    number: int
    sums: bytes
    peaks: bytes

    @classmethod
    def of(cls, sample: Sample) -> History:
        """Returns a history of one sample."""
        return cls(sample, Packed(), 0, _SUMS_PACKED.pack(*_summands(sample)), _PEAKS_PACKED.pack(*_numbers(sample)))

    def with_sample(self, sample: Sample, span: float) -> History:
        """This history with one more sample, not older than the newest.

        A decreased counter or bucket means that the engine process restarted: it counts from zero again, and earlier
        growth stays in the differences. A sample more than `span` seconds after the last one, or with other bucket
        bounds (another version of the engine), begins a new history.
        """
        was = self.newest
        if sample.time - was.time > span or _bounds(sample) != _bounds(was):
            return History.of(sample)
        older, number, peaks = self.snapshots(), self.number, _numbers(sample)
        if not older or was.time - _HEAD.unpack_from(older[-1])[_TIME] >= span * SPACING:
            older.append(self._snapshot())
            _thin(older, number)
            number += 1
        else:
            peaks = [max(pair) for pair in zip(peaks, _PEAKS_PACKED.unpack(self.peaks), strict=True)]
        if _restarted(was, sample):
            older = [_rebased(snapshot, was) for snapshot in older]
        sums = map(add, _SUMS_PACKED.unpack(self.sums), _summands(sample))
        return History(sample, Packed(b"".join(older)), number, _SUMS_PACKED.pack(*sums), _PEAKS_PACKED.pack(*peaks))

    def snapshots(self) -> list[bytes]:
        """Returns the snapshots, oldest first."""
        rows = self.packed.rows
        size = _COUNTS.start * 8 + 4 * sum(len(one.bounds) for one in _histograms(self.newest))
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def since(self, start: float) -> PodSpan:
        """Growth after `start`: the difference to the last snapshot taken at `start` or before, or to the oldest one if
        all are younger.

        The difference is exact, but may begin early: by less than one scrape interval when `start` lies within the
        last `NEWEST - 1` of them, else by less than two thirds of the time since `start`. Snapshots reach back 39 to 47
        scrape intervals. If scrapes are more frequent than `SPACING`, `SPACING` replaces their interval.
        """
        older = self.snapshots() if self.newest.time > start else []
        for index in range(len(older) - 1, 0, -1):
            if _HEAD.unpack_from(older[index])[_TIME] <= start:
                return PodSpan(self, older[index:])
        return PodSpan(self, older)

    def _snapshot(self) -> bytes:
        """Returns the newest sample, packed."""
        newest, counts = self.newest, [*map(int, _counts(self.newest))]
        if max(counts, default=0) >= _WORD:
            counts = [count % _WORD for count in counts]
        head, totals = _HEAD.pack(self.number, newest.time), _TOTALS_PACKED.pack(*_totals(newest))
        return b"".join((head, totals, self.sums, self.peaks, _packing_counts(len(counts)).pack(*counts)))


class PodSpan(Counters):
    """Growth of one pod's metrics between two of its samples. Most of it is computed when it is first read: a round
    reads a part of it.

    Attributes:
        samples: number of samples, both ends included; with one sample all growth is 0.
        seconds: between both ends.
        mean, peak: mean and peak of gauges, without the first sample unless it is the only one.
        newest: the sample at the end.
    """

    __slots__ = ("_history", "_later", "_was", "mean", "newest", "peak", "samples", "seconds")

    samples: int
    seconds: float
    mean: Gauges
    peak: Gauges
    newest: Sample
    _history: History
    _later: Sequence[bytes]
    _was: tuple[float, ...]

    def __init__(self, history: History, snapshots: Sequence[bytes]) -> None:
        """Args: snapshots: the one at the begin and all later ones; empty: the newest sample is both ends."""
        was = _unpacked(snapshots[0]) if snapshots else ()
        for name, value in (
            ("_history", history),
            ("_later", snapshots[1:]),
            ("_was", was),
            ("newest", history.newest),
            ("seconds", history.newest.time - was[_TIME] if was else 0.0),
            ("samples", int(_SUMS_PACKED.unpack(history.sums)[0] - was[_SUMS.start]) + 1 if was else 1),
        ):
            object.__setattr__(self, name, value)

    if not TYPE_CHECKING:  # what is not computed yet has a type above and in `Counters`

        def __getattr__(self, name: str) -> Any:
            if name in _COUNTERS:
                value = self._total(_COUNTERS.index(name), getattr(self.newest, name))
            elif name in _HISTOGRAMS:
                value = self._histogram(_HISTOGRAMS.index(name))
            elif name in ("mean", "peak"):
                value = self._gauges(peak=name == "peak")
            else:
                raise AttributeError(name)
            object.__setattr__(self, name, value)
            return value

    def _total(self, index: int, now: float) -> float:
        """Returns the growth of a counter or of a histogram's total. Args: index: among them. now: at the end."""
        return max(0.0, now - self._was[_TOTALS.start + index]) if self._was else 0.0

    def _histogram(self, index: int) -> Histogram:
        if not self._was:
            return Histogram()
        histograms = _histograms(self.newest)
        newest = histograms[index]
        start = _COUNTS.start + sum(len(one.bounds) for one in histograms[:index])
        was = self._was[start : start + len(newest.bounds)]
        counts = [grown % _WORD for grown in map(sub, newest.counts, was)]
        return Histogram(newest.bounds, counts, self._total(len(_COUNTERS) + index, newest.total))

    def _gauges(self, *, peak: bool) -> Gauges:
        if not self._was:
            return Gauges(*_gauges(self.newest))
        samples, *sums, prompt_tokens, reported = map(sub, _SUMS_PACKED.unpack(self._history.sums), self._was[_SUMS])
        if not peak:
            means: list[Any] = [*(total / samples for total in sums), prompt_tokens / reported if reported else None]
            return Gauges(*means)
        peaks = (_PEAKS_PACKED.unpack_from(snapshot, _PEAKS_OFFSET) for snapshot in self._later)
        most: list[Any] = [*map(max, zip(_PEAKS_PACKED.unpack(self._history.peaks), *peaks, strict=True))]
        if not reported:
            most[-1] = None
        return Gauges(*most)


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


@lru_cache(maxsize=64)
def _packing_counts(counts: int) -> Struct:
    return Struct(f"<{counts}I")


def _unpacked(snapshot: bytes) -> tuple[float, ...]:
    return _packing((len(snapshot) - _COUNTS.start * 8) // 4).unpack(snapshot)


def _rebased(snapshot: bytes, was: Sample) -> bytes:
    """Returns a snapshot rebased onto a restarted process, where `was` is the last sample of the previous process."""
    numbers = _unpacked(snapshot)
    totals = map(sub, numbers[_TOTALS], _totals(was))
    counts = [(then - int(count)) % _WORD for then, count in zip(numbers[_COUNTS], _counts(was), strict=True)]
    return _packing(len(counts)).pack(*numbers[:2], *totals, *numbers[_SUMS], *numbers[_PEAKS], *counts)


def _thin(snapshots: list[bytes], newest: int) -> None:
    """Drops those snapshots of a history until number `newest` that are too old for their number. Peaks of a dropped
    snapshot are merged into the next one."""
    for index in reversed(_dropped(newest if newest < _SETTLED else _SETTLED + newest % SPARSEST)):
        peaks = _PEAKS_PACKED.unpack_from(snapshots.pop(index), _PEAKS_OFFSET)
        snapshot = snapshots[index]
        merged = map(max, _PEAKS_PACKED.unpack_from(snapshot, _PEAKS_OFFSET), peaks)
        head, tail = snapshot[:_PEAKS_OFFSET], snapshot[_PEAKS_OFFSET + _PEAKS_PACKED.size :]
        snapshots[index] = head + _PEAKS_PACKED.pack(*merged) + tail


_SETTLED = (NEWEST + 1) * SPARSEST
"""Number of a snapshot from which the same ones are dropped after every `SPARSEST`; a multiple of it."""


@lru_cache(maxsize=_SETTLED + SPARSEST)
def _dropped(newest: int) -> tuple[int, ...]:
    """Returns the indices of the snapshots to drop where number `newest` is new. Number 8 n is kept longest, then 4 n,
    2 n, and odd ones."""
    before = [number for number in range(newest) if _is_kept(number, newest - 1)]
    return tuple(index for index, number in enumerate(before) if not _is_kept(number, newest))


def _is_kept(number: int, newest: int) -> bool:
    divisor = min(number & -number or SPARSEST, SPARSEST)
    return newest + 1 - number < NEWEST * divisor

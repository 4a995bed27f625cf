"""Metrics of a replica: histograms with the engine's buckets, and counters."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from inflight_base.page.histogram import Histogram
from inflight_cost.model import StepWork
from inflight_engine import buckets
from inflight_fit.online import MeasuredCost, OnlineFit
from inflight_fit.output_lengths import OutputLength, OutputLengths
from inflight_simulator.fleet.requests import Floats

_FIT_INTERVAL_S = 60.0
"""Seconds between two fits of the cost model after the first `_FIRST_FITS`. The engine fits four times as often, but
here steps cost the same all the while, and fits would take a third of the time."""
_FIRST_FITS = 8


class _Counts:
    """A mutable histogram; a bucket counts values up to its bound."""

    __slots__ = ("_bounds", "_counts", "_edges", "_exported", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._edges = np.array(bounds)
        self._exported = (*map(float, bounds), math.inf)
        self._counts = np.zeros(len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def observe_many(self, values: Floats, counts: Floats) -> None:
        """Adds each value with its count."""
        places = np.searchsorted(self._edges, values)
        self._counts += np.bincount(places, counts, len(self._counts))
        self._sum += float(values @ counts)

    def histogram(self) -> Histogram:
        return Histogram(self._exported, np.cumsum(self._counts).tolist(), self._sum)


class Meter:
    """Metrics of a replica. Steps are buffered, and counted when the metrics are read.

    Attributes:
        generated: output tokens. computed: prompt tokens.
        arrived_requests, arrived_tokens, arrived_squares: number, sum and sum of squares of the lengths of prompts.
    """

    def __init__(self) -> None:
        self.generated = 0
        self.computed = 0
        self.arrived_requests = 0
        self.arrived_tokens = 0
        self.arrived_squares = 0
        self._ttft = _Counts(buckets.TIME_TO_FIRST_TOKEN)
        self._tpot = _Counts(buckets.TIME_PER_OUTPUT_TOKEN)
        self._itl = _Counts(buckets.INTER_TOKEN)
        self._step_tokens = _Counts(buckets.STEP_TOKENS)
        self._fit = OnlineFit()
        self._cost: MeasuredCost | None = None
        self._next_fit = 0.0
        self._num_fits = 0
        self._lengths = OutputLengths()
        self._counted: dict[int, int] = {}
        """Output tokens by request that `_lengths` includes."""
        self._begins: list[int] = []
        self._ends: list[int] = []
        """Spans of outputs that `_lengths` does not include yet."""
        self._gaps: list[float] = []
        self._gap_counts: list[float] = []
        self._times: list[float] = []
        self._decodes: list[float] = []
        """Runs of steps: the begin and the end of each step, and the number of sequences that got a token with it."""

    def arrived(self, prompt_tokens: int) -> None:
        self.arrived_requests += 1
        self.arrived_tokens += prompt_tokens
        self.arrived_squares += prompt_tokens * prompt_tokens

    def started(self, work: StepWork, seconds: float, ends: float) -> None:
        """A step began that takes so long; of a run, only the first."""
        self._fit.observe(work, seconds, ends)

    def step(self, seconds: float, decodes: int, tokens: int) -> None:
        """A step with prefills: `decodes` sequences got a token `seconds` after their last one."""
        self._step_tokens.observe(tokens)
        self.computed += tokens - decodes
        if decodes:
            self.generated += decodes
            self._gaps.append(seconds)
            self._gap_counts.append(decodes)

    def run(self, begun: float, ends: list[float], decodes: int) -> None:
        """Steps of decodes alone, one after another."""
        self._times.append(begun)
        self._times += ends
        self._decodes.append(0.0)
        self._decodes += [float(decodes)] * len(ends)
        self._step_tokens.observe(decodes, len(ends))
        self.generated += decodes * len(ends)

    def first_token(self, seconds: float) -> None:
        self.generated += 1
        self._ttft.observe(seconds)

    def gap(self, seconds: float) -> None:
        """Observes the time between the last token before a preemption and the next one."""
        self.generated += 1
        self._itl.observe(seconds)

    def finished(self, request_id: int, output_tokens: int, seconds: float) -> None:
        """Counts a request that ended. `seconds`: time since its first token."""
        self._generated(self._counted.pop(request_id, 0), output_tokens)
        self._lengths.ended(output_tokens)
        if output_tokens > 1:
            self._tpot.observe(seconds / (output_tokens - 1))

    def cost(self, now: float) -> MeasuredCost | None:
        """The engine's online fit to the steps so far."""
        if now >= self._next_fit and self._fit.due(now):
            self._cost = self._fit.fit(now) or self._cost
            self._num_fits += self._cost is not None
            if self._num_fits >= _FIRST_FITS:
                self._next_fit = now + _FIT_INTERVAL_S
        return self._cost

    def output_length(self, decoding: Iterable[tuple[int, int]], now: float) -> OutputLength | None:
        """`decoding`: requests that still run, with their output tokens so far."""
        for request_id, tokens in decoding:
            self._generated(self._counted.get(request_id, 0), tokens)
            self._counted[request_id] = tokens
        if self._begins:
            self._lengths.generated_many(self._begins, self._ends)
            self._begins.clear()
            self._ends.clear()
        self._lengths.forget(now)
        return self._lengths.estimate()

    def _generated(self, begin: int, end: int) -> None:
        self._begins.append(begin)
        self._ends.append(end)

    def histograms(self) -> tuple[Histogram, Histogram, Histogram, Histogram]:
        """Returns the histograms of TTFT, time per output token, inter-token latency and tokens of a step."""
        self._count_gaps()
        return tuple(each.histogram() for each in (self._ttft, self._tpot, self._itl, self._step_tokens))  # type: ignore[return-value]

    def _count_gaps(self) -> None:
        times = np.array(self._times)
        gaps = [np.array(self._gaps), np.diff(times, prepend=times[:1])]
        # Between two runs no request waits for a token: those differences count 0 times.
        self._itl.observe_many(np.concatenate(gaps), np.array(self._gap_counts + self._decodes))
        for each in (self._gaps, self._gap_counts, self._times, self._decodes):
            each.clear()

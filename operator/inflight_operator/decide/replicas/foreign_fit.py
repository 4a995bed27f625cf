"""Cost model of an engine that reports none, such as vLLM, fitted to the growth of its histograms.

Between two scrapes the steps' number and tokens (`iteration_tokens_total`), the generated tokens and the inter-token
latency show the work and the duration of a mean step: seconds = base + a x decoding sequences + b x prompt
tokens. KV cache reads of decodes are part of a, for contexts of the recent length. Least squares of the
relative error with forgetting, no coefficient below zero. Means of intervals hide much, so the fit is used only if
decodes and prompt tokens varied enough and independently, and the residual is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

from inflight_cost.model import CostModel

FORGETTING = 0.995
"""Weight of what is known with each further interval: of 200 intervals, 10 minutes of one pod, a third is left."""

MIN_INTERVALS = 30.0
"""Weight from which a fit is made."""

MIN_SPREAD = 0.25
"""Least standard deviation of decodes and of prompt tokens a step, as a share of their means."""

MAX_CORRELATION = 0.95
"""Maximum correlation of the two: above it their costs cannot be separated."""

MAX_UNEXPLAINED = 0.15
"""Largest root mean square of the relative error."""

MIN_STEPS, MIN_GAPS = 5.0, 20.0
"""Steps, and tokens after the first of a request, that an interval must have."""

_ALL = (0, 1, 2)
_SUBSETS = tuple(subset for size in (3, 2, 1) for subset in combinations(_ALL, size))


@dataclass(frozen=True, slots=True)
class ForeignFit:
    """Weighted sums over all intervals.

    Attributes:
        weight: intervals, the forgotten ones in part.
        moments: weighted sums of d, p, d^2, p^2 and d p, with d decodes and p prompt tokens a step.
        products: weighted sums of the products of the rows (1, d, p) / seconds: 11, 1d, 1p, dd, dp, pp.
        targets: weighted sums of the rows.
    """

    weight: float = 0.0
    moments: tuple[float, ...] = (0.0,) * 5
    products: tuple[float, ...] = (0.0,) * 6
    targets: tuple[float, ...] = (0.0,) * 3

    def with_interval(
        self, steps: float, tokens: float, generated: float, gaps: float, gap_seconds: float
    ) -> ForeignFit:
        """This fit with the work of one pod between two samples.

        Args:
            steps, tokens: steps of the engine, and the tokens that they computed.
            generated: output tokens among them.
            gaps, gap_seconds: inter-token latencies, and their sum.
        """
        if steps < MIN_STEPS or gaps < MIN_GAPS or gap_seconds <= 0:
            return self
        decodes, prompts, seconds = generated / steps, max(0.0, tokens - generated) / steps, gap_seconds / gaps
        row = 1 / seconds, decodes / seconds, prompts / seconds
        squares = (row[i] * row[j] for i in _ALL for j in _ALL if i <= j)
        powers = decodes, prompts, decodes**2, prompts**2, decodes * prompts
        return ForeignFit(
            FORGETTING * self.weight + 1,
            tuple(FORGETTING * was + now for was, now in zip(self.moments, powers, strict=True)),
            tuple(FORGETTING * was + now for was, now in zip(self.products, squares, strict=True)),
            tuple(FORGETTING * was + now for was, now in zip(self.targets, row, strict=True)),
        )

    def cost(self) -> CostModel | None:
        """Returns the cost model; None if the fit is not reliable."""
        if self.weight < MIN_INTERVALS or not self._spread():
            return None
        solved = ((self._unexplained(found), found) for found in map(self._solved, _SUBSETS) if found is not None)
        unexplained, (base, decode, prompt) = min(solved, default=(math.inf, (0.0, 0.0, 0.0)))
        if unexplained > MAX_UNEXPLAINED or base + decode <= 0 or prompt <= 0:
            return None
        return CostModel(base, decode, prompt, 0.0, 0.0)

    def _spread(self) -> bool:
        d, p, dd, pp, dp = (moment / self.weight for moment in self.moments)
        of_decodes, of_prompts = math.sqrt(max(0.0, dd - d * d)), math.sqrt(max(0.0, pp - p * p))
        if of_decodes <= MIN_SPREAD * d or of_prompts <= MIN_SPREAD * p:
            return False
        return abs(dp - d * p) <= MAX_CORRELATION * of_decodes * of_prompts

    def _solved(self, subset: tuple[int, ...]) -> tuple[float, float, float] | None:
        """Least squares with these coefficients alone; None where it has none, or one below zero."""
        rows = [[self._product(i, j) for j in subset] + [self.targets[i]] for i in subset]
        for index, row in enumerate(rows):
            if row[index] <= 1e-12 * self._product(subset[index], subset[index]):
                return None
            for other in rows:
                if other is not row:
                    factor = other[index] / row[index]
                    other[:] = [one - factor * two for one, two in zip(other, row, strict=True)]
        found = [0.0, 0.0, 0.0]
        for index, coefficient in enumerate(subset):
            found[coefficient] = rows[index][-1] / rows[index][index]
        return (found[0], found[1], found[2]) if min(found) >= 0 else None

    def _unexplained(self, found: tuple[float, float, float]) -> float:
        """Root mean square of the relative error."""
        square = sum(found[i] * found[j] * self._product(i, j) for i in _ALL for j in _ALL)
        square += self.weight - 2 * sum(found[i] * self.targets[i] for i in _ALL)
        return math.sqrt(max(0.0, square) / self.weight)

    def _product(self, i: int, j: int) -> float:
        low, high = min(i, j), max(i, j)
        return self.products[(0, 3, 5)[low] + high - low]

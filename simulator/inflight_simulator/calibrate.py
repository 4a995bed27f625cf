"""Fits the cost model to measured steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import msgspec
import numpy as np
import numpy.typing as npt

from inflight_simulator.cost import LinearCost, StepWork
from inflight_simulator.step_log import Floats

_ROUNDS = 30
_HUBER = 1.345
"""In standard deviations: 95% as efficient as least squares where there are no outliers (Huber 1964)."""
_MAD_TO_DEVIATION = 1.4826
_SMALLEST_SCALE = 1e-9
_HICCUPS = 0.01
"""Share of steps that R2 leaves out: one that the machine paused in outweighs thousands."""
POOR_ERROR = 0.1
POOR_R2 = 0.9


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost model and how well it explains the steps it was fitted to.

    Attributes:
        unseen: factors of what no step did; they keep the default.
        r2: share of the variance of step times that it explains, at most 1; without the 1% of steps it explains worst.
        median_error: of |predicted - measured| / measured, all steps; `median_error_decode` of those that only decode,
            `median_error_prefill` of the others; None where there are none.
    """

    cost: LinearCost
    unseen: tuple[str, ...]
    num_steps: int
    r2: float
    median_error: float
    median_error_decode: float | None
    median_error_prefill: float | None

    @property
    def poor(self) -> bool:
        return self.median_error > POOR_ERROR or self.r2 < POOR_R2


def fit_cost(works: Floats, seconds: Floats) -> Fit:
    """Non-negative least squares on relative errors, with Huber's weights so that hiccups count little.

    Args:
        works: [steps, numbers of `StepWork`].
        seconds: [steps], above 0.

    Raises:
        ValueError: fewer steps than factors.
    """
    names = LinearCost.__struct_fields__
    if len(seconds) < len(names):
        raise ValueError(f"{len(seconds)} steps are too few to fit {len(names)} factors")
    matrix = np.column_stack([np.ones(len(seconds)), works])
    seen = matrix.any(axis=0)
    # Relative errors: each row over its own time, so that what is fitted is 1 everywhere.
    rows = matrix[:, seen] / seconds[:, None]
    weights = np.ones(len(seconds))
    factors = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        factors = _non_negative_least_squares(rows, weights)
        residuals = np.abs(rows @ factors - 1)
        scale = max(_MAD_TO_DEVIATION * float(np.median(residuals)), _SMALLEST_SCALE)
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(residuals, _SMALLEST_SCALE))
    fitted = dict(zip(np.array(names)[seen].tolist(), factors.tolist(), strict=True))
    errors = np.abs(rows @ factors - 1)
    decode_only = works[:, StepWork._fields.index("prefill_tokens")] == 0
    return Fit(
        cost=msgspec.structs.replace(LinearCost(), **fitted),
        unseen=tuple(np.array(names)[~seen].tolist()),
        num_steps=len(seconds),
        r2=_r2(seconds, seconds * (rows @ factors), errors <= np.quantile(errors, 1 - _HICCUPS)),
        median_error=float(np.median(errors)),
        median_error_decode=_median(errors[decode_only]),
        median_error_prefill=_median(errors[~decode_only]),
    )


def _non_negative_least_squares(rows: Floats, weights: Floats) -> Floats:
    """Exact: with so few factors every choice of those above zero can be tried."""
    norms = np.sqrt((rows**2).sum(axis=0))
    scaled = rows / norms
    gram = (scaled * weights[:, None]).T @ scaled
    target = scaled.T @ weights
    best, least = np.zeros(len(norms)), 0.0
    for size in range(1, len(norms) + 1):
        for chosen in map(list, combinations(range(len(norms)), size)):
            solution = np.linalg.lstsq(gram[np.ix_(chosen, chosen)], target[chosen], rcond=None)[0]
            # Of the squared error only what depends on the factors.
            error = float(solution @ gram[np.ix_(chosen, chosen)] @ solution - 2 * solution @ target[chosen])
            if error < least and (solution >= 0).all():
                least, best = error, np.zeros(len(norms))
                best[chosen] = solution
    factors: Floats = best / norms
    return factors


def _r2(measured: Floats, predicted: Floats, counted: npt.NDArray[np.bool_]) -> float:
    measured, predicted = measured[counted], predicted[counted]
    variance = float(((measured - measured.mean()) ** 2).sum())
    return 1 - float(((measured - predicted) ** 2).sum()) / variance if variance else 1.0


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None

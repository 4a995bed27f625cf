"""Fits the cost model to measured steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

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
_DECODES, _PREFILLS = StepWork._fields.index("decode_seqs"), StepWork._fields.index("prefill_tokens")
_SIZES = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    15,
    16,
    20,
    24,
    31,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    4096,
)
"""Upper ends of the sizes of steps, in tokens, that are told apart. Below a multiple of 16 rows a matrix product may
take another kernel than at it."""
_STEPS_OF_A_SIZE = 5
_BENDS = 4
_WORTH_A_BEND = 0.9
"""A shape is kept, or another round of it, only where the median error falls to this share: on a machine that is
linear it would follow the noise."""
POOR_ERROR = 0.1
POOR_R2 = 0.9


Shape: TypeAlias = tuple[tuple[float, float], ...]


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
    """Non-negative least squares on relative errors, with Huber's weights so that hiccups count little; then, where
    steps depart from the straight line by how many tokens they compute, the shape of that.

    Args:
        works: [steps, numbers of `StepWork`].
        seconds: [steps], above 0.

    Raises:
        ValueError: fewer steps than factors.
    """
    if len(seconds) <= works.shape[1]:
        raise ValueError(f"{len(seconds)} steps are too few to fit {works.shape[1] + 1} factors")
    matrix = np.column_stack([np.ones(len(seconds)), works])
    names = np.array(LinearCost.__struct_fields__)[: matrix.shape[1]]
    tokens = works[:, _DECODES] + works[:, _PREFILLS]
    factors = _fit_line(matrix, seconds)
    errors = np.abs(matrix @ factors / seconds - 1)
    shape: Shape = ()
    bent = np.ones(len(seconds))
    for _ in range(_BENDS):
        tried = _shape_of(tokens, seconds / np.maximum(matrix @ factors, _SMALLEST_SCALE))
        tried_bent = np.interp(tokens, *np.transpose(tried))
        tried_factors = _fit_line(matrix, seconds / tried_bent)
        tried_errors = np.abs(tried_bent * (matrix @ tried_factors) / seconds - 1)
        if np.median(tried_errors) > _WORTH_A_BEND * np.median(errors):
            break
        factors, errors, shape, bent = tried_factors, tried_errors, tried, tried_bent
    seen = matrix.any(axis=0)
    decode_only = works[:, _PREFILLS] == 0
    fitted = dict(zip(names[seen].tolist(), factors[seen].tolist(), strict=True))
    return Fit(
        cost=msgspec.structs.replace(LinearCost(), shape=shape, **fitted),
        unseen=tuple(names[~seen].tolist()),
        num_steps=len(seconds),
        r2=_r2(seconds, bent * (matrix @ factors), errors <= np.quantile(errors, 1 - _HICCUPS)),
        median_error=float(np.median(errors)),
        median_error_decode=_median(errors[decode_only]),
        median_error_prefill=_median(errors[~decode_only]),
    )


def _fit_line(matrix: Floats, seconds: Floats) -> Floats:
    """One factor for each column; 0 for a column of zeros."""
    seen = matrix.any(axis=0)
    # Relative errors: each row over its own time, so that what is fitted is 1 everywhere.
    rows = matrix[:, seen] / seconds[:, None]
    weights = np.ones(len(seconds))
    factors = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        factors[seen] = _non_negative_least_squares(rows, weights)
        residuals = np.abs(rows @ factors[seen] - 1)
        scale = max(_MAD_TO_DEVIATION * float(np.median(residuals)), _SMALLEST_SCALE)
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(residuals, _SMALLEST_SCALE))
    return factors


def _shape_of(tokens: Floats, ratios: Floats) -> Shape:
    """The median ratio of steps of about as many tokens, for each size that has enough of them."""
    size = np.searchsorted(_SIZES, tokens, side="left")
    pairs = []
    for each in np.unique(size):
        among = size == each
        if among.sum() >= _STEPS_OF_A_SIZE:
            pairs.append((float(np.median(tokens[among])), float(np.median(ratios[among]))))
    return tuple(pairs) or ((1.0, 1.0),)


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

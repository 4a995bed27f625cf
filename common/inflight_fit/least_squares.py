"""Non-negative least squares, robust to outliers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROUNDS = 30
_SETTLED = 1e-6
"""Share of a step's time: a factor that contributes less is 0, and a round that changes less is the last."""
_HUBER = 1.345
"""Error from which a row counts less, in standard deviations: 95% as efficient as least squares without outliers
(Huber 1964)."""
_MAD_TO_DEVIATION = 1.4826
_SMALLEST_SCALE = 1e-9
_LEAST_DEVIATION = 1e-3
"""Minimum relative standard deviation of rows from the fit, when the prior is weighed against them."""
_PRIOR_DEVIATION = 0.5
"""Relative standard deviation of a factor's contribution to a step before anything is measured."""
_FARTHEST = 4.0
"""Maximum factor by which the prediction that a row's error is relative to is too large or too small."""
_TOLERANCE = 1e-10
_PART = 128
"""Number of rows that are multiplied at once. A product of all of them would be spread over all CPUs, where threads of
the BLAS library wait for each other and for those that compute steps: several times as long."""


def fit_relative(columns: Floats, target: Floats, prior: Floats, weights: Floats | None = None) -> Floats:
    """Factors of 0 or more with which the columns come closest to the target, in relative errors: by least squares,
    reweighted so that outliers count little and so that errors are relative to the prediction (as in quasi-likelihood
    with a constant coefficient of variation, McCullagh 1983).

    Where the rows cannot tell two columns apart, as when as many sequences decode in every step, the prior decides; it
    has the weight of one row whose error is `_PRIOR_DEVIATION`.

    Args:
        columns: [n, k], none of them all zeros.
        target: [n], above 0.
        prior: [k], factors.
        weights: [n], how much each row counts, above 0; None: all the same.

    Returns:
        [k].
    """
    norms = np.sqrt(((columns / target[:, None]) ** 2).mean(axis=0))
    columns = columns / norms
    expected = prior * norms
    given = np.ones(len(target)) if weights is None else weights
    robust = np.ones(len(target))
    factors = np.zeros(columns.shape[1])
    deviation, scale = _PRIOR_DEVIATION, target
    for _ in range(_ROUNDS):
        before = factors
        rows = columns / scale[:, None]
        weighted = rows * (given * robust)[:, None]
        trust = (max(deviation, _LEAST_DEVIATION) / _PRIOR_DEVIATION) ** 2
        gram = _gram(weighted, rows)
        gram[np.diag_indices_from(gram)] += trust
        factors = non_negative(gram, np.einsum("nk,n->k", weighted, target / scale) + trust * expected, factors > 0)
        predicted = np.einsum("nk,k->n", columns, factors)
        # Relative to what is predicted: relative to what was measured, a noisy machine would seem faster than it is.
        scale = np.clip(predicted, target / _FARTHEST, target * _FARTHEST)
        residuals = np.abs(target - predicted) / scale
        deviation = max(_MAD_TO_DEVIATION * weighted_median(residuals, given), _SMALLEST_SCALE)
        robust = np.minimum(1.0, _HUBER * deviation / np.maximum(residuals, _SMALLEST_SCALE))
        if np.abs(factors - before).max() <= _SETTLED:
            break
    result: Floats = np.where(factors > _SETTLED, factors, 0.0) / norms
    return result


def _gram(left: Floats, right: Floats) -> Floats:
    """Return A^T B for [n, k] each."""
    total = np.zeros((left.shape[1], right.shape[1]))
    for begin in range(0, len(left), _PART):
        total += left[begin : begin + _PART].T @ right[begin : begin + _PART]
    return total


def weighted_median(values: Floats, weights: Floats | None = None) -> float:
    """Return the least value with half of the weight at or below it; `values` are not empty. Without `weights` all
    count the same. (The first call of `np.median` imports for a tenth of a second.)"""
    order = np.argsort(values)
    reached = np.cumsum(np.ones(len(values)) if weights is None else weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])


def non_negative(gram: Floats, projected: Floats, start: npt.NDArray[np.bool_]) -> Floats:
    """Minimise |A x - b| with x >= 0, by the active set method (Lawson and Hanson 1974, chapter 23).

    Args:
        gram: [k, k], A^T A.
        projected: [k], A^T b.
        start: [k], the factors to begin with as not 0; those of a problem nearby save most of the work.
    """
    x = np.zeros(len(gram))
    free = np.zeros(len(gram), np.bool_)
    if start.any():
        solution = _solve(gram, projected, start)
        if (solution[start] > 0).all():
            x, free = solution, start.copy()
    scale = float(np.abs(projected).max())
    for _ in range(3 * len(x)):
        gradient = np.where(free, -np.inf, projected - gram @ x)
        if free.all() or gradient.max() <= _TOLERANCE * scale:
            break
        free[gradient.argmax()] = True
        while True:
            solution = _solve(gram, projected, free)
            below = free & (solution <= 0)
            if not below.any():
                break
            step = np.min(x[below] / np.maximum(x[below] - solution[below], _SMALLEST_SCALE))
            x = x + step * (solution - x)
            free &= x > _TOLERANCE
            x[~free] = 0.0
        x = solution
    return x


def _solve(gram: Floats, projected: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """Least squares with the free factors alone; the others are 0."""
    solution = np.zeros(len(gram))
    solution[free] = np.linalg.lstsq(gram[np.ix_(free, free)], projected[free], rcond=None)[0]
    return solution

"""Non-negative least squares, robust to outliers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROUNDS = 30
_HUBER = 1.345
"""In standard deviations: 95% as efficient as least squares where there are no outliers (Huber 1964)."""
_MAD_TO_DEVIATION = 1.4826
_SMALLEST_SCALE = 1e-9
_TOLERANCE = 1e-10


def fit_relative(columns: Floats, target: Floats) -> Floats:
    """Factors of 0 or more with which the columns come closest to the target, in relative errors: by least squares,
    reweighted so that outliers count little.

    Args:
        columns: [n, k], none of them all zeros.
        target: [n], above 0.

    Returns:
        [k].
    """
    # Each row over its own target, so that what is fitted is 1 everywhere.
    rows = columns / target[:, None]
    norms = np.sqrt((rows**2).sum(axis=0))
    rows = rows / norms
    weights = np.ones(len(target))
    factors = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        factors = _non_negative(rows * root[:, None], root)
        residuals = np.abs(rows @ factors - 1)
        scale = max(_MAD_TO_DEVIATION * float(np.median(residuals)), _SMALLEST_SCALE)
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(residuals, _SMALLEST_SCALE))
    result: Floats = factors / norms
    return result


def _non_negative(rows: Floats, target: Floats) -> Floats:
    """min |rows x - target| with x >= 0, by the active set method (Lawson and Hanson 1974, chapter 23)."""
    gram, projected = rows.T @ rows, rows.T @ target
    x = np.zeros(rows.shape[1])
    free = np.zeros(rows.shape[1], np.bool_)
    for _ in range(3 * len(x)):
        gradient = np.where(free, -np.inf, projected - gram @ x)
        if free.all() or gradient.max() <= _TOLERANCE * len(target):
            break
        free[gradient.argmax()] = True
        while True:
            solution = np.zeros(len(x))
            solution[free] = np.linalg.lstsq(gram[np.ix_(free, free)], projected[free], rcond=None)[0]
            below = free & (solution <= 0)
            if not below.any():
                break
            step = np.min(x[below] / (x[below] - solution[below]))
            x = x + step * (solution - x)
            free &= x > _TOLERANCE
            x[~free] = 0.0
        x = solution
    return x

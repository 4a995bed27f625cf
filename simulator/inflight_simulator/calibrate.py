"""Fits the cost model to a recording and reports the error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inflight_cost.model import CostModel, StepWork
from inflight_engine.cost_fit.fit import fit_steps
from inflight_engine.cost_fit.least_squares import Floats
from inflight_simulator.cost import LLAMA_8B_H100

_HICCUPS = 0.01
"""Share of steps that R2 excludes: one step with a pause of the machine outweighs thousands."""
POOR_ERROR = 0.1
POOR_R2 = 0.9


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost model and its goodness of fit.

    Attributes:
        unseen: factors of work that no step had; they keep the default.
        r2: share of the variance of step times that it explains, at most 1; without the 1% of steps with the largest
            error.
        median_error: of |predicted - measured| / measured, all steps; `median_error_decode` of those that only decode,
            `median_error_prefill` of the others; None where there are none.
    """

    cost: CostModel
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
    """As `fit_steps`; a factor of work that no step had keeps its default.

    Args:
        works: [steps, numbers of `StepWork`].
        seconds: [steps], above 0.

    Raises:
        ValueError: fewer steps than factors.
    """
    fitted = fit_steps(works, seconds, LLAMA_8B_H100)
    errors, decode_only = fitted.errors, works[:, StepWork._fields.index("prefill_tokens")] == 0
    predicted = np.array([fitted.cost.seconds(StepWork(*work)) for work in works.tolist()])
    return Fit(
        cost=fitted.cost,
        unseen=fitted.unseen,
        num_steps=len(seconds),
        r2=_r2(seconds, predicted, errors <= np.quantile(errors, 1 - _HICCUPS)),
        median_error=fitted.median_error,
        median_error_decode=_median(errors[decode_only]),
        median_error_prefill=_median(errors[~decode_only]),
    )


def _r2(measured: Floats, predicted: Floats, counted: npt.NDArray[np.bool_]) -> float:
    measured, predicted = measured[counted], predicted[counted]
    variance = float(((measured - measured.mean()) ** 2).sum())
    return 1 - float(((measured - predicted) ** 2).sum()) / variance if variance else 1.0


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None

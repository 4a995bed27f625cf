"""Fits the cost model to measured steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from inflight_simulator.cost import LinearCost, StepWork
from inflight_simulator.least_squares import Floats, fit_relative

_HICCUPS = 0.01
"""Share of steps that R2 leaves out: one that the machine paused in outweighs thousands."""
_SIZES = (1, 2, 3, 4, 6, 8, 12, 15, 16, 20, 24, 31, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
"""Upper ends of the sizes of steps, in tokens, that a curve tells apart. Below a multiple of 16 rows a matrix product
may take another kernel than at it."""
_STEPS_OF_A_SIZE = 5
_WORTH_A_CURVE = 0.9
"""A curve is taken only where the median error falls to this share: on a machine that is linear it would follow the
noise."""
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


class _Model(NamedTuple):
    """A cost model, and what it says of each step."""

    cost: LinearCost
    predicted: Floats


def fit_cost(works: Floats, seconds: Floats) -> Fit:
    """Robust non-negative least squares on relative errors: of the straight line, and, where steps depart from it by
    how many tokens they compute, of a curve in the place of its constant, decodes and prompt tokens.

    Args:
        works: [steps, numbers of `StepWork`].
        seconds: [steps], above 0.

    Raises:
        ValueError: fewer steps than factors.
    """
    if len(seconds) <= works.shape[1]:
        raise ValueError(f"{len(seconds)} steps are too few to fit {works.shape[1] + 1} factors")
    fields = dict(zip(_FACTORS, works.T, strict=True))
    unseen = tuple(name for name, column in fields.items() if not column.any())
    seen = {name: column for name, column in fields.items() if name not in unseen}
    model, curved = _line(seen, seconds), _curve(seen, works[:, _DECODES] + works[:, _PREFILLS], seconds)
    if np.median(_errors(curved, seconds)) <= _WORTH_A_CURVE * np.median(_errors(model, seconds)):
        model = curved
    errors = _errors(model, seconds)
    decode_only = works[:, _PREFILLS] == 0
    return Fit(
        cost=model.cost,
        unseen=unseen,
        num_steps=len(seconds),
        r2=_r2(seconds, model.predicted, errors <= np.quantile(errors, 1 - _HICCUPS)),
        median_error=float(np.median(errors)),
        median_error_decode=_median(errors[decode_only]),
        median_error_prefill=_median(errors[~decode_only]),
    )


_DECODES, _PREFILLS = StepWork._fields.index("decode_seqs"), StepWork._fields.index("prefill_tokens")
_FACTORS = ("decode_seq_s", "prefill_token_s", "decode_kv_token_s", "prefill_context_token_s", "copied_token_s")
"""Of `LinearCost`, in the order of `StepWork`."""


def _line(columns: dict[str, Floats], seconds: Floats) -> _Model:
    named = {"base_s": np.ones(len(seconds)), **columns}
    matrix = np.column_stack(list(named.values()))
    factors = fit_relative(matrix, seconds)
    fitted = dict(zip(named, factors.tolist(), strict=True))
    return _Model(msgspec.structs.replace(LinearCost(), **fitted), matrix @ factors)


def _curve(columns: dict[str, Floats], tokens: Floats, seconds: Floats) -> _Model:
    """Neither decodes nor prompt tokens have a factor beside a curve: most sizes of steps are met with decodes only, or
    with prompts only, where such a factor and the curve could not be told apart."""
    named = {name: column for name, column in columns.items() if name not in ("decode_seq_s", "prefill_token_s")}
    knots = _knots(tokens)
    # Column k is how much the k-th knot has in the value interpolated at each step's tokens.
    hats = [np.interp(tokens, knots, unit) for unit in np.eye(len(knots))]
    matrix = np.column_stack([*hats, *named.values()])
    factors = fit_relative(matrix, seconds)
    fitted = dict(zip(named, factors[len(knots) :].tolist(), strict=True))
    curve = tuple(zip(knots, factors[: len(knots)].tolist(), strict=True))
    in_curve = dict.fromkeys(columns.keys() - named.keys(), 0.0)
    cost = msgspec.structs.replace(LinearCost(), base_s=0.0, curve=curve, **in_curve, **fitted)
    return _Model(cost, matrix @ factors)


def _knots(tokens: Floats) -> list[float]:
    """The median of each size of steps that there are enough of, and the largest of all."""
    size = np.searchsorted(_SIZES, tokens, side="left")
    counts = np.bincount(size)
    common = np.flatnonzero(counts >= _STEPS_OF_A_SIZE)
    return sorted({float(tokens.max()), *(float(np.median(tokens[size == each])) for each in common)})


def _errors(model: _Model, seconds: Floats) -> Floats:
    errors: Floats = np.abs(model.predicted / seconds - 1)
    return errors


def _r2(measured: Floats, predicted: Floats, counted: npt.NDArray[np.bool_]) -> float:
    measured, predicted = measured[counted], predicted[counted]
    variance = float(((measured - measured.mean()) ** 2).sum())
    return 1 - float(((measured - predicted) ** 2).sum()) / variance if variance else 1.0


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None

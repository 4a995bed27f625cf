"""Fits `CostModel` to steps: a straight line, or a curve over tokens where a machine departs from it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from inflight_cost.model import CostModel, StepWork
from inflight_fit.least_squares import Floats, fit_relative, weighted_median

SIZES = (1, 2, 3, 4, 6, 8, 12, 15, 16, 20, 24, 31, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
"""Upper ends of the sizes of steps, in tokens, that a curve tells apart. Below a multiple of 16 rows a matrix product
may take another kernel than at it."""
_STEPS_OF_A_SIZE = 5
_WORTH_A_CURVE = 0.9
"""Share to which the mean error must fall for a curve: on a machine that is linear it would follow the
noise."""
_STRAIGHT = 0.01
"""Mean error of a line up to which no curve is fitted."""
_DECODES, _PREFILLS = StepWork._fields.index("decode_seqs"), StepWork._fields.index("prefill_tokens")
FACTORS = ("decode_seq_s", "prefill_token_s", "decode_kv_token_s", "prefill_context_token_s", "copied_token_s")
"""Names of the factors of `CostModel`, in the order of `StepWork`."""


class Fitted(NamedTuple):
    """A cost model with its errors.

    Attributes:
        unseen: factors of work that no step did.
        errors: [steps], |predicted - measured| / measured.
        median_error: median of `errors` by the weights of the steps.
    """

    cost: CostModel
    unseen: tuple[str, ...]
    errors: Floats
    median_error: float


def fit_steps(works: Floats, seconds: Floats, unseen: CostModel, weights: Floats | None = None) -> Fitted:
    """Robust non-negative least squares on relative errors: of the straight line, and, where steps depart from it by
    how many tokens they compute, of a curve in the place of its constant, decodes and prompt tokens.

    Args:
        works: [steps, numbers of `StepWork`].
        seconds: [steps], above 0.
        unseen: has the factors of what no step did.
        weights: [steps], how much each counts, above 0; None: all the same.

    Raises:
        ValueError: fewer steps than factors.
    """
    if len(seconds) <= works.shape[1]:
        raise ValueError(f"{len(seconds)} steps are too few to fit {works.shape[1] + 1} factors")
    weights = np.ones(len(seconds)) if weights is None else weights
    fields = dict(zip(FACTORS, works.T, strict=True))
    idle = tuple(name for name, column in fields.items() if not column.any())
    seen = {name: column for name, column in fields.items() if name not in idle}
    line = _line(seen, seconds, unseen, weights)
    found = line.judged(seconds, weights)
    straight = _typical(found.errors)
    if straight > _STRAIGHT:
        tokens = works[:, _DECODES] + works[:, _PREFILLS]
        curved = _curve(seen, tokens, seconds, line.cost, weights).judged(seconds, weights)
        if _typical(curved.errors) <= _WORTH_A_CURVE * straight:
            found = curved
    return found._replace(unseen=idle)


def _typical(errors: Floats) -> float:
    """Return the mean error of all steps alike: a curve also has to hold for sizes that are out of use and weigh
    little."""
    return float(np.minimum(errors, 1.0).mean())


class _Model(NamedTuple):
    """A cost model, and what it says of each step."""

    cost: CostModel
    predicted: Floats

    def judged(self, seconds: Floats, weights: Floats) -> Fitted:
        errors: Floats = np.abs(self.predicted / seconds - 1)
        return Fitted(self.cost, (), errors, weighted_median(errors, weights))


def _line(columns: dict[str, Floats], seconds: Floats, unseen: CostModel, weights: Floats) -> _Model:
    named = {"base_s": np.ones(len(seconds)), **columns}
    matrix = np.column_stack(list(named.values()))
    # Expected before anything is measured: each factor has an equal part in a step.
    prior = 1 / np.sqrt(((matrix / seconds[:, None]) ** 2).mean(axis=0)) / len(named)
    factors = fit_relative(matrix, seconds, prior, weights)
    fitted = dict(zip(named, factors.tolist(), strict=True))
    return _Model(replace(unseen, curve=(), **fitted), matrix @ factors)


def _curve(columns: dict[str, Floats], tokens: Floats, seconds: Floats, line: CostModel, weights: Floats) -> _Model:
    """Neither decodes nor prompt tokens have a factor beside a curve: most sizes of steps are met with decodes only, or
    with prompts only, where such a factor and the curve could not be separated."""
    named = {name: column for name, column in columns.items() if name not in ("decode_seq_s", "prefill_token_s")}
    knots = _knots(tokens)
    # Column k is how much the k-th knot has in the value interpolated at each step's tokens.
    hats = [np.interp(tokens, knots, unit) for unit in np.eye(len(knots))]
    matrix = np.column_stack([*hats, *named.values()])
    token_s = min([getattr(line, name) for name in ("decode_seq_s", "prefill_token_s") if name in columns])
    prior = [line.base_s + token_s * knot for knot in knots] + [getattr(line, name) for name in named]
    factors = fit_relative(matrix, seconds, np.array(prior), weights)
    fitted = dict(zip(named, factors[len(knots) :].tolist(), strict=True))
    curve = tuple(zip(knots, factors[: len(knots)].tolist(), strict=True))
    in_curve = dict.fromkeys(columns.keys() - named.keys(), 0.0)
    return _Model(replace(line, base_s=0.0, curve=curve, **in_curve, **fitted), matrix @ factors)


def _knots(tokens: Floats) -> list[float]:
    """Return the median of each size of steps that is frequent enough, and the largest of all."""
    size = np.searchsorted(SIZES, tokens, side="left")
    counts = np.bincount(size)
    common = np.flatnonzero(counts >= _STEPS_OF_A_SIZE)
    return sorted({float(tokens.max()), *(weighted_median(tokens[size == each]) for each in common)})

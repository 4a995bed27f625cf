"""Check that drawn tokens are distributed as their parameters say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from inflight_engine.request import SamplingParams

FILTERS = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.15": {"temperature": 0.15},
    "top_k 8": {"temperature": 0.3, "top_k": 8},
    "top_p 0.7": {"temperature": 0.15, "top_p": 0.7},
    "min_p 0.05": {"temperature": 0.15, "min_p": 0.05},
    "all three": {"temperature": 0.2, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
}
MOST_EXCESS = 6.0
"""In standard deviations of the chi-square statistic: what a right sampler exceeds once in thousands of runs."""
_LEAST_EXPECTED = 8.0
"""Draws in a cell, so that its count is nearly normal."""
_SHARED_CELLS = 32


def probabilities(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """float64 [vocabulary], of float32 logits: min_p of the likeliest, then the top_k, then the top_p of those."""
    weights = (logits.double() / sampling.temperature).softmax(dim=0).cpu()
    weights[weights < sampling.min_p * weights.max()] = 0
    order = weights.argsort(descending=True, stable=True)
    if sampling.top_k:
        weights[order[sampling.top_k :]] = 0
    mass = weights[order].cumsum(dim=0)
    before = mass - weights[order]
    weights[order[before >= sampling.top_p * mass[-1]]] = 0
    kept: torch.Tensor = weights / weights.sum()
    return kept


def excess(drawn: Sequence[int], expected: torch.Tensor) -> float:
    """How far the chi-square statistic (Pearson 1900) of draws lies above its mean, in its standard deviations;
    infinite where a token was drawn that cannot be. Likely tokens are cells of their own. The others share cells, once
    with their neighbours by id, once with those by probability; the larger statistic counts.

    Args:
        expected: float64 [vocabulary]: probabilities.
    """
    counts = torch.bincount(torch.tensor(drawn), minlength=len(expected)).double()
    if bool((counts[expected == 0] > 0).any()):
        return float("inf")
    means = expected * len(drawn)
    likely = means >= _LEAST_EXPECTED
    by_id = ((expected > 0) & ~likely).nonzero()[:, 0]
    by_probability = by_id[expected[by_id].argsort(stable=True)]
    return max(_excess(counts, means, likely, order) for order in (by_id, by_probability))


def _excess(counts: torch.Tensor, means: torch.Tensor, likely: torch.Tensor, others: torch.Tensor) -> float:
    observed, expected = [counts[likely]], [means[likely]]
    mass = means[others].cumsum(dim=0)
    num_cells = min(_SHARED_CELLS, int(mass[-1] / _LEAST_EXPECTED)) if len(others) else 0
    if num_cells:
        cell = (mass / mass[-1] * num_cells).long().clamp(max=num_cells - 1)
        for values, cells in ((counts, observed), (means, expected)):
            cells.append(torch.zeros(num_cells, dtype=torch.float64).index_add_(0, cell, values[others]))
    seen, mean = torch.cat(observed), torch.cat(expected)
    freedom = max(1, len(seen) - 1)
    statistic = float(((seen - mean) ** 2 / mean).sum())
    return (statistic - freedom) / math.sqrt(2 * freedom)

"""Choosing the next token of many sequences at once on a CPU: the likeliest, or a draw.

Each random draw is a pure function of the request's seed and the token's position, so it is the same whatever else is
in the batch, however the prompt was chunked, and after a preemption.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.native import sample as native

_CANDIDATES = 1024
"""Number of likeliest tokens that are tried first: top_k and top_p rarely keep more, and sorting all tokens is slow."""
_SHARED_FROM = 1 << 18
"""Number of logits from which on the argmax of the kernels, with all threads, is faster than numpy's."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawBatch:
    """Parameters of N draws, a row for each token.

    Attributes:
        temperature: float64 [N], above 0.
        min_p: float64 [N], 0 keeps all. top_k: int64 [N], 0 keeps all. top_p: float64 [N], 1 keeps all.
        seed: uint64 [N].
        position: int64 [N]: index of the token in its sequence.
    """

    temperature: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.int64]


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the likeliest token of each row, int64 [N]; the smallest of equally likely ones."""
    if logits.numel() > _SHARED_FROM and native.can_sample(logits):
        return native.argmax(logits)
    return torch.from_numpy(
        logits.numpy().argmax(axis=-1)
    )  # vectorised; torch's was measured to take six times as long


def draw(logits: torch.Tensor, batch: DrawBatch, rows: npt.NDArray[np.int64] | None = None) -> torch.Tensor:
    """Draw one token a row.

    By inverting the cumulative distribution over token ids. In float64: the sum runs over the whole vocabulary, and a
    draw must not change when the last bit of some logit does. The kernels add in another order than torch, so the
    results differ where the drawn number is within rounding of the boundary between two tokens.

    Args:
        logits: float32 [M, vocab_size].
        rows: [N]: the rows to draw from; None: all.

    Returns:
        int64 [N].
    """
    number = uniform(batch.seed, batch.position)
    if native.can_sample(logits):
        how = np.empty(len(number), native.DRAW)
        for name in ("temperature", "min_p", "top_k", "top_p"):
            how[name] = getattr(batch, name)
        how["number"] = number
        return native.draw(logits, rows, how)
    if rows is not None:
        logits = logits[torch.from_numpy(rows).to(logits.device)]
    return _draw(logits, batch, number)


def _draw(logits: torch.Tensor, batch: DrawBatch, number: npt.NDArray[np.float64]) -> torch.Tensor:
    def column(values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values).to(logits.device)[:, None]

    most = logits.amax(dim=-1, keepdim=True).double()
    # No distribution is in a row without a greatest finite logit: one of masks that leave nothing, or a broken model's.
    usable = most.isfinite()
    shifted = torch.where(usable, logits.double() - most, 0)
    weights = (shifted / column(batch.temperature)).exp()  # [N, V], the largest is 1
    vocab_size = weights.shape[-1]
    if batch.min_p.any():
        weights *= weights >= column(batch.min_p)
    filtered = np.flatnonzero(((batch.top_k > 0) & (batch.top_k < vocab_size)) | (batch.top_p < 1))
    if len(filtered):
        rows = torch.from_numpy(filtered).to(logits.device)
        top_k = np.where(batch.top_k > 0, batch.top_k, vocab_size).clip(max=vocab_size)
        weights[rows] = _keep_likeliest(weights[rows], column(top_k[filtered]), column(batch.top_p[filtered]))
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding must not push the target to the total: behind it there is no token.
    below_total = total.nextafter(torch.zeros_like(total))
    target = torch.minimum(column(number) * total, below_total)
    drawn = torch.searchsorted(cumulative, target, right=True)
    return torch.where(usable, drawn, logits.argmax(dim=-1, keepdim=True)).squeeze(-1)


def uniform(seed: npt.NDArray[np.uint64], position: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each (seed, position), from splitmix64 (Steele, Lea, Flood 2014) used as a hash."""
    mixed = _splitmix64(_splitmix64(seed) + position.astype(np.uint64))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)  # wraps, as it should
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _keep_likeliest(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Weights with all but the kept tokens' set to 0: top_k first, then top_p of what that left. Of equally likely
    tokens those with the smallest ids stay, so exactly the smallest set is kept.

    Args:
        weights: [N, V]. top_k: [N, 1], 1 to V. top_p: [N, 1].
    """
    vocab_size = weights.shape[-1]
    num_candidates = min(_CANDIDATES, vocab_size)
    num_kept, least = _cutoff(weights, top_k, top_p, num_candidates)
    unsure = ((num_kept == num_candidates) & (top_k > num_candidates)).squeeze(-1).nonzero().squeeze(-1)
    if len(unsure):
        num_kept[unsure], least[unsure] = _cutoff(weights[unsure], top_k[unsure], top_p[unsure], vocab_size)
    above, equal = weights > least, weights == least
    equal &= equal.cumsum(dim=-1) <= num_kept - above.sum(dim=-1, keepdim=True)
    return weights * (above | equal)


def _cutoff(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of tokens to keep and the least weight among them, both [N, 1], from the likeliest tokens
    only."""
    candidates = weights.topk(num_candidates, dim=-1).values
    cumulative = candidates.cumsum(dim=-1)
    within = cumulative.gather(-1, (top_k.clamp(max=num_candidates) - 1))
    mass = torch.where(top_k <= num_candidates, within, _total(weights))
    rank = torch.arange(num_candidates, device=weights.device)
    keep = (rank < top_k) & (cumulative - candidates < top_p * mass)
    num_kept = keep.sum(dim=-1, keepdim=True)
    return num_kept, candidates.gather(-1, num_kept - 1)


def _total(weights: torch.Tensor) -> torch.Tensor:
    """Return each row's sum, [N, 1]; `sum` would add a large row in another order when it is the only one."""
    return weights.cumsum(dim=-1)[:, -1:]

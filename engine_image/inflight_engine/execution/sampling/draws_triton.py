"""Random draws on a GPU in one kernel that sorts nothing and that the host does not wait for.

Which tokens top_k and top_p leave is said by a logit: those above it stay, and of those equal to it the first few. It
is found digit by digit (of the float's bits, which are ordered as floats are): each pass over the row weighs eight
thresholds at once, so eleven passes find one among all floats. A program has one row, so what it draws does not depend
on the others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from inflight_engine.execution.memory.staging import upload

_BLOCK = 1024
_LOWEST = tl.constexpr(-(1 << 31))
_DIGITS = tl.constexpr(11)
_WAYS = tl.constexpr(8)


@triton.jit
def weigh(
    row: tl.tensor,
    start: tl.tensor,
    vocab_size: tl.tensor,
    peak: tl.tensor,
    temperature: tl.tensor,
    min_p: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Of some tokens: their weights (the likeliest token's is 1; 0 for those that min_p drops) and their logits' places
    in the order of all floats."""
    ids = start + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    logits = tl.load(row + ids, mask=inside, other=float("-inf")) + 0.0  # no negative zero
    weights = tl.exp((logits - peak) / temperature)
    weights = tl.where(inside & (weights >= min_p), weights, 0.0)
    bits = logits.to(tl.int32, bitcast=True)
    return weights.to(tl.float64), (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def find_threshold(
    row: tl.tensor,
    vocab_size: tl.tensor,
    peak: tl.tensor,
    temperature: tl.tensor,
    min_p: tl.tensor,
    floor: tl.tensor,
    goal: tl.tensor,
    IS_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The greatest threshold, at least `floor`, that tokens of `goal` in number or mass reach."""
    threshold = tl.full((), _LOWEST, tl.int64)
    for digit in range(_DIGITS):
        step = tl.full((), 1, tl.int64) << (3 * (_DIGITS - 1 - digit))
        candidates = threshold + tl.arange(0, _WAYS).to(tl.int64) * step
        reached = tl.zeros((_WAYS,), tl.float64)
        for start in range(0, vocab_size, BLOCK):
            weights, keys = weigh(row, start, vocab_size, peak, temperature, min_p, BLOCK)
            if not IS_MASS:
                weights = (weights > 0).to(tl.float64)
            reached += tl.sum(tl.where(keys[:, None] >= candidates[None, :], weights[:, None], 0.0), axis=0)
        is_low_enough = (reached >= goal) | (candidates <= floor)
        threshold += (tl.sum(is_low_enough.to(tl.int64), axis=0) - 1) * step
    return threshold


@triton.jit
def measure(
    row: tl.tensor,
    vocab_size: tl.tensor,
    peak: tl.tensor,
    temperature: tl.tensor,
    min_p: tl.tensor,
    threshold: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Number and mass of the tokens above a threshold, number of those at it, and the weight of one of those."""
    num_above, mass_above = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    num_equal, weight = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    for start in range(0, vocab_size, BLOCK):
        weights, keys = weigh(row, start, vocab_size, peak, temperature, min_p, BLOCK)
        above = tl.where(keys > threshold, weights, 0.0)
        equal = tl.where(keys == threshold, weights, 0.0)
        num_above += tl.sum((above > 0).to(tl.float64), axis=0)
        mass_above += tl.sum(above, axis=0)
        num_equal += tl.sum((equal > 0).to(tl.float64), axis=0)
        weight = tl.maximum(weight, tl.max(equal, axis=0))
    return num_above, mass_above, num_equal, weight


@triton.jit(do_not_specialize=["num_rows"])
def draw_kernel(
    logits: tl.tensor,
    rows: tl.tensor,
    how: tl.tensor,
    drawn: tl.tensor,
    stride: tl.tensor,
    num_rows: tl.tensor,
    vocab_size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One program draws from one row."""
    index = tl.program_id(0)
    row = logits + tl.load(rows + index) * stride
    temperature = tl.load(how + index).to(tl.float32)
    min_p = tl.load(how + num_rows + index).to(tl.float32)
    top_k = tl.load(how + 2 * num_rows + index)
    top_p = tl.load(how + 3 * num_rows + index)
    number = tl.load(how + 4 * num_rows + index)
    peak = tl.full((), float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        peak = tl.maximum(peak, tl.max(tl.load(row + ids, mask=ids < vocab_size, other=float("-inf")), axis=0))

    threshold = tl.full((), _LOWEST, tl.int64)
    if top_k < vocab_size:
        threshold = find_threshold(
            row, vocab_size, peak, temperature, min_p, threshold, top_k, IS_MASS=False, BLOCK=BLOCK
        )
    num_above, mass, num_equal, weight = measure(row, vocab_size, peak, temperature, min_p, threshold, BLOCK)
    num_equal = tl.minimum(num_equal, top_k - num_above)
    if top_p < 1:
        goal = top_p * (mass + num_equal * weight)
        floor = threshold
        threshold = find_threshold(row, vocab_size, peak, temperature, min_p, floor, goal, IS_MASS=True, BLOCK=BLOCK)
        if threshold > floor:
            num_above, mass, num_equal, weight = measure(row, vocab_size, peak, temperature, min_p, threshold, BLOCK)
        num_equal = tl.minimum(num_equal, tl.ceil((goal - mass) / weight))

    target = number * (mass + num_equal * weight)
    passed, num_met = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    found, last = vocab_size, tl.zeros((), tl.int32)
    for start in range(0, vocab_size, BLOCK):
        weights, keys = weigh(row, start, vocab_size, peak, temperature, min_p, BLOCK)
        is_equal = (keys == threshold) & (weights > 0)
        place = num_met + tl.cumsum(is_equal.to(tl.float64), axis=0)
        kept = (weights > 0) & ((keys > threshold) | (is_equal & (place <= num_equal)))
        weights = tl.where(kept, weights, 0.0)
        ids = start + tl.arange(0, BLOCK)
        is_behind = kept & (passed + tl.cumsum(weights, axis=0) > target)
        found = tl.minimum(found, tl.min(tl.where(is_behind, ids, vocab_size), axis=0))
        last = tl.maximum(last, tl.max(tl.where(kept, ids, 0), axis=0))
        passed += tl.sum(weights, axis=0)
        num_met += tl.sum(is_equal.to(tl.float64), axis=0)
    # Rounding may leave the target at the total: behind it there is no token.
    tl.store(drawn + index, tl.where(found < vocab_size, found, last).to(tl.int64))


def draw_rows(logits: torch.Tensor, rows: npt.NDArray[np.int64], how: npt.NDArray[np.float64]) -> torch.Tensor:
    """Draw a token from each of some rows.

    Args:
        logits: float32 [M, vocab_size] on a GPU, the last dimension contiguous.
        rows: [N].
        how: [5, N]: temperature, min_p, top_k (at least 1), top_p, and a number in [0, 1).

    Returns:
        int64 [N], on the GPU.
    """
    drawn = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    draw_kernel[(len(rows),)](
        logits,
        upload(rows, logits.device),
        upload(how, logits.device),
        drawn,
        logits.stride(0),
        len(rows),
        logits.shape[1],
        BLOCK=_BLOCK,
        num_warps=8,
        enable_fp_fusion=True,
    )
    return drawn

"""The tokens that top_k and top_p keep of a row of logits, found without sorting and without the host.

A key (a logit's place in the order of all floats) names them: tokens above it stay, and the first few of those at it.
The key is found digit by digit: each launch counts (top_k) or weighs (top_p) the tokens that have the digits found so
far by their next digit, for each part; each program of the next launch adds the parts up and takes the digit in which
the goal is reached. Rows without the filter leave such launches at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inflight_engine.execution.sampling.triton_logits import (
    MIN_P,
    NUM_INTEGERS,
    NUM_NUMBERS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    key_of,
    load_edited,
    load_peak,
    logit_of,
    weight_of,
)

MASS = tl.constexpr(2.0**40)
"""Mass of a weight of 1; masses are integers."""
STATE = tl.constexpr(3)
"""Number of values that each digit of a row's search leaves for the next."""


@triton.jit
def add_up(histogram: tl.tensor, SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """Return a row's histogram over all splits, [WAYS]."""
    splits, ways = tl.arange(0, PADDED_SPLITS)[:, None], tl.arange(0, 1 << BITS)[None, :]
    return tl.sum(tl.load(histogram + splits * (1 << BITS) + ways, mask=splits < SPLITS, other=0), axis=0)


@triton.jit
def descend(
    histogram: tl.tensor, goal: tl.tensor, SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr, BITS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return the greatest digit at and above which the goal is reached, or 0, and the rest of the goal there."""
    found = add_up(histogram, SPLITS, PADDED_SPLITS, BITS)
    reached = tl.sum(found, axis=0) - tl.cumsum(found, axis=0) + found
    digit = tl.maximum(tl.sum((reached >= goal).to(tl.int64), axis=0) - 1, 0)
    above = tl.sum(tl.where(tl.arange(0, 1 << BITS) > digit, found, 0), axis=0)
    return digit, goal - above


@triton.jit
def before(
    histogram: tl.tensor, digit: tl.tensor, split: tl.tensor, PADDED_SPLITS: tl.constexpr, BITS: tl.constexpr
) -> tl.tensor:
    """Return the sum of a digit over the splits before `split`."""
    splits = tl.arange(0, PADDED_SPLITS)
    return tl.sum(tl.load(histogram + splits * (1 << BITS) + digit, mask=splits < split, other=0), axis=0)


@triton.jit
def finish_top_k(
    histograms: tl.tensor,
    states: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    BITS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """top_k's key, how many of the tokens at it stay, and its last digit. Where fewer tokens are possible than may
    stay, the key is 0."""
    at = (32 // BITS - 1) * num_rows + row
    prefix, goal = tl.load(states + at * STATE), tl.load(states + at * STATE + 1)
    digit, num_equal = descend(histograms + at * (SPLITS * (1 << BITS)), goal, SPLITS, PADDED_SPLITS, BITS)
    return prefix + digit, num_equal, digit


@triton.jit
def histogram_of(
    logits: tl.tensor,
    slot: tl.tensor,
    numbers: tl.tensor,
    met: tl.tensor,
    vocab_size: tl.tensor,
    first: tl.tensor,
    peak: tl.tensor,
    prefix: tl.tensor,
    floor: tl.tensor,
    shift: tl.tensor,
    IS_MASS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
) -> tl.tensor:
    """Return the number or mass of a split's tokens above `floor` whose keys begin with the prefix, by the digit behind
    it, int64 [WAYS]."""
    temperature = tl.load(numbers + slot * NUM_NUMBERS + TEMPERATURE).to(tl.float32)
    min_p = tl.load(numbers + slot * NUM_NUMBERS + MIN_P).to(tl.float32)
    found = tl.zeros((1 << BITS,), tl.int64)
    for start in range(0, SPAN, BLOCK):
        ids = first + start + tl.arange(0, BLOCK)
        edited = load_edited(logits, slot, numbers, met, vocab_size, ids)
        keys = key_of(edited)
        weights = weight_of(edited, peak, temperature, min_p)
        begins = (keys >> (shift + BITS)) == (prefix >> (shift + BITS))
        counted = (weights > 0) & (keys > floor) & begins
        if tl.max(counted.to(tl.int32), axis=0) > 0:
            amounts = counted.to(tl.int64)
            if IS_MASS:
                amounts *= (weights * MASS).to(tl.int64)
            digits = (keys >> shift) & ((1 << BITS) - 1)
            is_digit = digits[:, None] == tl.arange(0, 1 << BITS)[None, :]
            found += tl.sum(tl.where(is_digit, amounts[:, None], 0), axis=0)
    return found


@triton.jit(do_not_specialize=["digit", "num_rows"])
def top_k_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    met: tl.tensor,
    peaks: tl.tensor,
    histograms: tl.tensor,
    states: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    num_rows: tl.tensor,
    digit: tl.tensor,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    BITS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Kernel that finds one digit of top_k's key.

    Args:
        histograms: int64 [digits, rows, SPLITS, 2**BITS].
        states: int64 [digits, rows, 3]: the digits found before each, and how many tokens are still to be kept.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    top_k = tl.load(integers + slot * NUM_INTEGERS + TOP_K)
    if (top_k < vocab_size) & (tl.load(numbers + slot * NUM_NUMBERS + TEMPERATURE).to(tl.float32) > 0):
        shift = (digit.to(tl.int64) - (32 // BITS - 1)) * -BITS
        at = digit * num_rows + row
        prefix, goal = tl.zeros((), tl.int64), top_k
        if digit > 0:
            last = at - num_rows
            found, goal = descend(
                histograms + last * (SPLITS * (1 << BITS)),
                tl.load(states + last * STATE + 1),
                SPLITS,
                PADDED_SPLITS,
                BITS,
            )
            prefix = tl.load(states + last * STATE) + (found << (shift + BITS))
        if split == 0:
            tl.store(states + at * STATE, prefix)
            tl.store(states + at * STATE + 1, goal)
        found = histogram_of(
            logits + row * stride,
            slot,
            numbers,
            met,
            vocab_size,
            split * SPAN,
            load_peak(peaks, row, SPLITS, PADDED_SPLITS),
            prefix,
            tl.zeros((), tl.int64),
            shift,
            False,
            SPAN,
            BLOCK,
            BITS,
        )
        tl.store(histograms + (at * SPLITS + split) * (1 << BITS) + tl.arange(0, 1 << BITS), found)


@triton.jit(do_not_specialize=["digit", "num_rows"])
def top_p_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    met: tl.tensor,
    peaks: tl.tensor,
    top_k_histograms: tl.tensor,
    top_k_states: tl.tensor,
    histograms: tl.tensor,
    states: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    num_rows: tl.tensor,
    digit: tl.tensor,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    BITS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Kernel that finds one digit of top_p's key, among the keys above top_k's.

    Args:
        histograms: int64 [digits, rows, SPLITS, 2**BITS].
        states: int64 [digits, rows, 3]: the digits found before each (the first has none), the mass that is still to be
            kept, and whether the key is top_k's because what is above that does not reach the goal.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    temperature = tl.load(numbers + slot * NUM_NUMBERS + TEMPERATURE).to(tl.float32)
    top_p = tl.load(numbers + slot * NUM_NUMBERS + TOP_P)
    if (top_p < 1) & (temperature > 0):
        shift = (digit.to(tl.int64) - (32 // BITS - 1)) * -BITS
        at = digit * num_rows + row
        peak = load_peak(peaks, row, SPLITS, PADDED_SPLITS)
        floor, num_equal = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
        if tl.load(integers + slot * NUM_INTEGERS + TOP_K) < vocab_size:
            floor, num_equal, _ = finish_top_k(
                top_k_histograms, top_k_states, row, num_rows, SPLITS, PADDED_SPLITS, BITS
            )
        prefix, is_done = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
        if digit > 0:
            last = at - num_rows
            histogram = histograms + last * (SPLITS * (1 << BITS))
            if digit == 1:
                min_p = tl.load(numbers + slot * NUM_NUMBERS + MIN_P).to(tl.float32)
                above = tl.sum(add_up(histogram, SPLITS, PADDED_SPLITS, BITS), axis=0)
                total = above
                if floor > 0:
                    total += num_equal * (weight_of(logit_of(floor), peak, temperature, min_p) * MASS).to(tl.int64)
                goal = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
                is_done = (above < goal).to(tl.int64)
                if above < goal:
                    goal -= above
            else:
                prefix = tl.load(states + last * STATE)
                goal = tl.load(states + last * STATE + 1)
                is_done = tl.load(states + last * STATE + 2)
            if is_done == 0:
                found, goal = descend(histogram, goal, SPLITS, PADDED_SPLITS, BITS)
                prefix += found << (shift + BITS)
            if split == 0:
                tl.store(states + at * STATE, prefix)
                tl.store(states + at * STATE + 1, goal)
                tl.store(states + at * STATE + 2, is_done)
        if is_done == 0:
            found = histogram_of(
                logits + row * stride,
                slot,
                numbers,
                met,
                vocab_size,
                split * SPAN,
                peak,
                prefix,
                floor,
                shift,
                True,
                SPAN,
                BLOCK,
                BITS,
            )
            tl.store(histograms + (at * SPLITS + split) * (1 << BITS) + tl.arange(0, 1 << BITS), found)

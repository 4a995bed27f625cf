"""`gumbel` in Triton kernels that sort nothing, that the host does not wait for, and whose launches follow from the
number of rows alone, so that a CUDA graph can hold them.

A program (row, split) has one row's tokens of one part of the vocabulary. Parts are of one size, whatever the number of
rows, and what programs hand on to each other is added in integers, so a row's token depends on nothing but the row.

What filters leave of a row is said by a key (a logit's place in the order of all floats): tokens above it stay, and of
those at it the first few. It is found digit by digit: each launch counts (top_k) or weighs (top_p) the tokens that have
the digits found so far by their next digit, for each part; each program of the next launch adds the parts up and takes
the digit in which the goal is reached. Rows without the filter leave such launches at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inflight_engine.execution.sampling import slot_table as columns
from inflight_engine.execution.sampling.slot_table import SlotTable

_SPAN = 8192
"""Tokens of a split."""
_BLOCK = 1024
_WARPS = 8
_BITS = 4
"""Of a digit; a divisor of 32."""

_MASS = tl.constexpr(2.0**40)
_NUM_NUMBERS = tl.constexpr(6)
_NUM_INTEGERS = tl.constexpr(3)
_STATE = tl.constexpr(3)
_TEMPERATURE, _MIN_P, _TOP_P = (tl.constexpr(i) for i in (columns.TEMPERATURE, columns.MIN_P, columns.TOP_P))
_REPETITION, _PRESENCE, _FREQUENCY = (
    tl.constexpr(i) for i in (columns.REPETITION, columns.PRESENCE, columns.FREQUENCY)
)
_SEED, _TOP_K, _NUM_BIASES = (tl.constexpr(i) for i in (columns.SEED, columns.TOP_K, columns.NUM_BIASES))
_MOST_MET = tl.constexpr(columns.MOST_MET)
_MOST_BIASES = tl.constexpr(columns.MOST_BIASES)


@triton.jit
def load_edited(
    logits: tl.tensor,
    slot: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    bias_tokens: tl.tensor,
    bias_values: tl.tensor,
    met: tl.tensor,
    vocab_size: tl.tensor,
    ids: tl.tensor,
) -> tl.tensor:
    """A row's logits of some tokens after logit_bias and penalties; behind the vocabulary, -inf."""
    inside = ids < vocab_size
    edited = tl.load(logits + ids, mask=inside, other=float("-inf"))
    for i in range(tl.load(integers + slot * _NUM_INTEGERS + _NUM_BIASES).to(tl.int32)):
        token = tl.load(bias_tokens + slot * _MOST_BIASES + i)
        edited = tl.where(ids == token, edited + tl.load(bias_values + slot * _MOST_BIASES + i), edited)
    repetition = tl.load(numbers + slot * _NUM_NUMBERS + _REPETITION).to(tl.float32)
    presence = tl.load(numbers + slot * _NUM_NUMBERS + _PRESENCE).to(tl.float32)
    frequency = tl.load(numbers + slot * _NUM_NUMBERS + _FREQUENCY).to(tl.float32)
    if (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0):
        number = tl.load(met + slot * vocab_size + ids, mask=inside, other=0).to(tl.int32)
        count = number >> 1
        repeated = tl.where(edited > 0, tl.math.div_rn(edited, repetition), edited * repetition)
        edited = tl.where(number > 0, repeated, edited) - frequency * count.to(tl.float32)
        edited = tl.where(count > 0, edited - presence, edited)
    return edited + 0.0  # no negative zero


@triton.jit
def key_of(logits: tl.tensor) -> tl.tensor:
    """Places in the order of all floats, int64 [0, 2**32). That of no logit is 0."""
    bits = logits.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def logit_of(key: tl.tensor) -> tl.tensor:
    """The inverse of `key_of`."""
    bits = (key - 2147483648).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(logits: tl.tensor, peak: tl.tensor, temperature: tl.tensor, min_p: tl.tensor) -> tl.tensor:
    """Of the likeliest token, 1; 0 of those that min_p drops."""
    weights = tl.exp((logits - peak) / temperature)
    return tl.where(weights >= min_p, weights, 0.0)


@triton.jit
def load_peak(peaks: tl.tensor, row: tl.tensor, SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr) -> tl.tensor:
    """A row's greatest logit."""
    splits = tl.arange(0, PADDED_SPLITS)
    return tl.max(tl.load(peaks + row * SPLITS + splits, mask=splits < SPLITS, other=float("-inf")), axis=0)


@triton.jit
def add_up(histogram: tl.tensor, SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr, BITS: tl.constexpr) -> tl.tensor:
    """[WAYS]: a row's histogram over all splits."""
    splits, ways = tl.arange(0, PADDED_SPLITS)[:, None], tl.arange(0, 1 << BITS)[None, :]
    return tl.sum(tl.load(histogram + splits * (1 << BITS) + ways, mask=splits < SPLITS, other=0), axis=0)


@triton.jit
def descend(
    histogram: tl.tensor, goal: tl.tensor, SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr, BITS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The greatest digit at and above which the goal is reached, 0 if none is, and what is left of the goal there."""
    found = add_up(histogram, SPLITS, PADDED_SPLITS, BITS)
    reached = tl.sum(found, axis=0) - tl.cumsum(found, axis=0) + found
    digit = tl.maximum(tl.sum((reached >= goal).to(tl.int64), axis=0) - 1, 0)
    above = tl.sum(tl.where(tl.arange(0, 1 << BITS) > digit, found, 0), axis=0)
    return digit, goal - above


@triton.jit
def before(
    histogram: tl.tensor, digit: tl.tensor, split: tl.tensor, PADDED_SPLITS: tl.constexpr, BITS: tl.constexpr
) -> tl.tensor:
    """What the splits before one have of a digit."""
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
    prefix, goal = tl.load(states + at * _STATE), tl.load(states + at * _STATE + 1)
    digit, num_equal = descend(histograms + at * (SPLITS * (1 << BITS)), goal, SPLITS, PADDED_SPLITS, BITS)
    return prefix + digit, num_equal, digit


@triton.jit
def peak_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    bias_tokens: tl.tensor,
    bias_values: tl.tensor,
    met: tl.tensor,
    peaks: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    SPLITS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The greatest logit of a split, of rows that draw."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if tl.load(numbers + slot * _NUM_NUMBERS + _TEMPERATURE).to(tl.float32) > 0:
        peak = tl.full((), float("-inf"), tl.float32)
        for start in range(0, SPAN, BLOCK):
            ids = split * SPAN + start + tl.arange(0, BLOCK)
            edited = load_edited(
                logits + row * stride, slot, numbers, integers, bias_tokens, bias_values, met, vocab_size, ids
            )
            peak = tl.maximum(peak, tl.max(edited, axis=0))
        tl.store(peaks + row * SPLITS + split, peak)


@triton.jit
def histogram_of(
    logits: tl.tensor,
    slot: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    bias_tokens: tl.tensor,
    bias_values: tl.tensor,
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
    """int64 [WAYS]: number or mass of a split's tokens above `floor`, of those whose keys begin with the prefix, by the
    digit behind it."""
    temperature = tl.load(numbers + slot * _NUM_NUMBERS + _TEMPERATURE).to(tl.float32)
    min_p = tl.load(numbers + slot * _NUM_NUMBERS + _MIN_P).to(tl.float32)
    found = tl.zeros((1 << BITS,), tl.int64)
    for start in range(0, SPAN, BLOCK):
        ids = first + start + tl.arange(0, BLOCK)
        edited = load_edited(logits, slot, numbers, integers, bias_tokens, bias_values, met, vocab_size, ids)
        keys = key_of(edited)
        weights = weight_of(edited, peak, temperature, min_p)
        begins = (keys >> (shift + BITS)) == (prefix >> (shift + BITS))
        counted = (weights > 0) & (keys > floor) & begins
        if tl.max(counted.to(tl.int32), axis=0) > 0:
            amounts = counted.to(tl.int64)
            if IS_MASS:
                amounts *= (weights * _MASS).to(tl.int64)
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
    bias_tokens: tl.tensor,
    bias_values: tl.tensor,
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
    """One digit of top_k's key.

    Args:
        histograms: int64 [digits, rows, SPLITS, 2**BITS].
        states: int64 [digits, rows, 3]: the digits found before each, and how many tokens are still to be kept.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    top_k = tl.load(integers + slot * _NUM_INTEGERS + _TOP_K)
    if (top_k < vocab_size) & (tl.load(numbers + slot * _NUM_NUMBERS + _TEMPERATURE).to(tl.float32) > 0):
        shift = (digit.to(tl.int64) - (32 // BITS - 1)) * -BITS
        at = digit * num_rows + row
        prefix, goal = tl.zeros((), tl.int64), top_k
        if digit > 0:
            last = at - num_rows
            found, goal = descend(
                histograms + last * (SPLITS * (1 << BITS)),
                tl.load(states + last * _STATE + 1),
                SPLITS,
                PADDED_SPLITS,
                BITS,
            )
            prefix = tl.load(states + last * _STATE) + (found << (shift + BITS))
        if split == 0:
            tl.store(states + at * _STATE, prefix)
            tl.store(states + at * _STATE + 1, goal)
        found = histogram_of(
            logits + row * stride,
            slot,
            numbers,
            integers,
            bias_tokens,
            bias_values,
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
    bias_tokens: tl.tensor,
    bias_values: tl.tensor,
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
    """One digit of top_p's key, among the keys above top_k's.

    Args:
        histograms: int64 [digits, rows, SPLITS, 2**BITS].
        states: int64 [digits, rows, 3]: the digits found before each (the first has none), the mass that is still to be
            kept, and whether the key is top_k's because what is above that does not reach the goal.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    temperature = tl.load(numbers + slot * _NUM_NUMBERS + _TEMPERATURE).to(tl.float32)
    top_p = tl.load(numbers + slot * _NUM_NUMBERS + _TOP_P)
    if (top_p < 1) & (temperature > 0):
        shift = (digit.to(tl.int64) - (32 // BITS - 1)) * -BITS
        at = digit * num_rows + row
        peak = load_peak(peaks, row, SPLITS, PADDED_SPLITS)
        floor, num_equal = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
        if tl.load(integers + slot * _NUM_INTEGERS + _TOP_K) < vocab_size:
            floor, num_equal, _ = finish_top_k(
                top_k_histograms, top_k_states, row, num_rows, SPLITS, PADDED_SPLITS, BITS
            )
        prefix, is_done = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
        if digit > 0:
            last = at - num_rows
            histogram = histograms + last * (SPLITS * (1 << BITS))
            if digit == 1:
                min_p = tl.load(numbers + slot * _NUM_NUMBERS + _MIN_P).to(tl.float32)
                above = tl.sum(add_up(histogram, SPLITS, PADDED_SPLITS, BITS), axis=0)
                total = above
                if floor > 0:
                    total += num_equal * (weight_of(logit_of(floor), peak, temperature, min_p) * _MASS).to(tl.int64)
                goal = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
                is_done = (above < goal).to(tl.int64)
                if above < goal:
                    goal -= above
            else:
                prefix = tl.load(states + last * _STATE)
                goal = tl.load(states + last * _STATE + 1)
                is_done = tl.load(states + last * _STATE + 2)
            if is_done == 0:
                found, goal = descend(histogram, goal, SPLITS, PADDED_SPLITS, BITS)
                prefix += found << (shift + BITS)
            if split == 0:
                tl.store(states + at * _STATE, prefix)
                tl.store(states + at * _STATE + 1, goal)
                tl.store(states + at * _STATE + 2, is_done)
        if is_done == 0:
            found = histogram_of(
                logits + row * stride,
                slot,
                numbers,
                integers,
                bias_tokens,
                bias_values,
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


@triton.jit
def splitmix64(x: tl.tensor) -> tl.tensor:
    """Of uint64."""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def gumbel_noise(stream: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """See `gumbel.exponential`."""
    outputs = splitmix64(stream + ids.to(tl.uint64) * 0x9E3779B97F4A7C15)
    share = ((outputs >> 24).to(tl.int64).to(tl.float32) + 0.5) * 9.094947017729282e-13  # 2**-40
    share = tl.minimum(share, 0.999999940395355)  # 1 - 2**-24
    small = share * (1.0 + share * (0.5 + share * 0.3333333333333333))
    return -tl.log(tl.where(share < 0.0009765625, small, -tl.log(1.0 - share)))


@triton.jit(do_not_specialize=["num_rows"])
def pick_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    bias_tokens: tl.tensor,
    bias_values: tl.tensor,
    met: tl.tensor,
    peaks: tl.tensor,
    top_k_histograms: tl.tensor,
    top_k_states: tl.tensor,
    top_p_histograms: tl.tensor,
    top_p_states: tl.tensor,
    scores: tl.tensor,
    tokens: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    num_rows: tl.tensor,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    BITS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A split's token with the greatest score: of its logit where the row is greedy, else with noise added."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    temperature = tl.load(numbers + slot * _NUM_NUMBERS + _TEMPERATURE).to(tl.float32)
    min_p = tl.load(numbers + slot * _NUM_NUMBERS + _MIN_P).to(tl.float32)
    is_drawn = temperature > 0
    threshold, num_equal, place = tl.zeros((), tl.int64), tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    peak, stream = tl.zeros((), tl.float32), tl.zeros((), tl.uint64)
    if is_drawn:
        peak = load_peak(peaks, row, SPLITS, PADDED_SPLITS)
        seed = tl.load(integers + slot * _NUM_INTEGERS + _SEED).to(tl.uint64, bitcast=True)
        stream = splitmix64(splitmix64(seed) + tl.load(positions + row).to(tl.uint64))
        last = (32 // BITS - 1) * num_rows + row
        histogram = last * (SPLITS * (1 << BITS))
        if tl.load(integers + slot * _NUM_INTEGERS + _TOP_K) < vocab_size:
            threshold, num_equal, digit = finish_top_k(
                top_k_histograms, top_k_states, row, num_rows, SPLITS, PADDED_SPLITS, BITS
            )
            place = before(top_k_histograms + histogram, digit, split, PADDED_SPLITS, BITS)
        if tl.load(numbers + slot * _NUM_NUMBERS + _TOP_P) < 1:
            goal = tl.load(top_p_states + last * _STATE + 1)
            is_top_ks = tl.load(top_p_states + last * _STATE + 2) != 0
            if not is_top_ks:
                digit, goal = descend(top_p_histograms + histogram, goal, SPLITS, PADDED_SPLITS, BITS)
                threshold = tl.load(top_p_states + last * _STATE) + digit
                place = before(top_p_histograms + histogram, digit, split, PADDED_SPLITS, BITS)
            mass = (weight_of(logit_of(threshold), peak, temperature, min_p) * _MASS).to(tl.int64)
            mass = tl.maximum(mass, 1)
            num_equal = (goal + mass - 1) // mass
            if not is_top_ks:
                place = place // mass
    best, token = tl.full((), float("-inf"), tl.float32), tl.full((), 0, tl.int32) + vocab_size
    for start in range(0, SPAN, BLOCK):
        ids = split * SPAN + start + tl.arange(0, BLOCK)
        score = load_edited(
            logits + row * stride, slot, numbers, integers, bias_tokens, bias_values, met, vocab_size, ids
        )
        kept = ids < vocab_size
        if is_drawn:
            keys = key_of(score)
            possible = weight_of(score, peak, temperature, min_p) > 0
            is_equal = possible & (keys == threshold)
            places = place + tl.cumsum(is_equal.to(tl.int64), axis=0)
            kept = possible & ((keys > threshold) | (is_equal & (places <= num_equal)))
            place += tl.sum(is_equal.to(tl.int64), axis=0)
        if tl.max(kept.to(tl.int32), axis=0) > 0:
            if is_drawn:
                score = (score - peak) / temperature + gumbel_noise(stream, ids)
            score = tl.where(kept, score, float("-inf"))
            block_best = tl.max(score, axis=0)
            block_token = tl.min(tl.where(kept & (score == block_best), ids, vocab_size), axis=0)
            if (block_best > best) | (token == vocab_size):
                best, token = block_best, block_token
    tl.store(scores + row * SPLITS + split, best)
    tl.store(tokens + row * SPLITS + split, token)


@triton.jit
def combine_kernel(
    scores: tl.tensor,
    tokens: tl.tensor,
    chosen: tl.tensor,
    vocab_size: tl.tensor,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
) -> None:
    """The splits' best token of a row, the first of equals. Always one of the vocabulary, whatever the logits are."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, PADDED_SPLITS)
    score = tl.load(scores + row * SPLITS + splits, mask=splits < SPLITS, other=float("-inf"))
    token = tl.load(tokens + row * SPLITS + splits, mask=splits < SPLITS, other=vocab_size)
    best = tl.min(tl.where(score == tl.max(score, axis=0), token, vocab_size), axis=0)
    tl.store(chosen + row, tl.minimum(best, vocab_size - 1).to(tl.int64))


@triton.jit
def count_kernel(
    slots: tl.tensor,
    token_ids: tl.tensor,
    met: tl.tensor,
    vocab_size: tl.tensor,
    num_rows: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """See `gumbel.count`. Rows of padding write to one place."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < num_rows
    at = met + tl.load(slots + rows, mask=mask, other=0) * vocab_size + tl.load(token_ids + rows, mask=mask, other=0)
    number = tl.load(at, mask=mask, other=0).to(tl.int32)
    tl.store(at, tl.where(number < _MOST_MET, number + 2, number).to(tl.int16), mask=mask)


def choose(logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, table: SlotTable) -> torch.Tensor:
    """See `gumbel.choose`; the last dimension of the logits is contiguous."""
    num_rows, vocab_size = logits.shape
    splits = triton.cdiv(vocab_size, _SPAN)
    device = logits.device
    peaks, scores = torch.empty((2, num_rows, splits), dtype=torch.float32, device=device)
    tokens = torch.empty((num_rows, splits), dtype=torch.int32, device=device)
    digits = 32 // _BITS
    counts, states = (digits, num_rows, splits, 1 << _BITS), (digits, num_rows, _STATE.value)
    top_k_histograms, top_p_histograms = torch.empty((2, *counts), dtype=torch.int64, device=device)
    top_k_states, top_p_states = torch.empty((2, *states), dtype=torch.int64, device=device)
    chosen = torch.empty(num_rows, dtype=torch.int64, device=device)

    slot_table = (table.numbers, table.integers, table.bias_tokens, table.bias_values, table.met)
    sizes = (logits.stride(0), vocab_size)
    split = {"SPLITS": splits, "SPAN": _SPAN, "BLOCK": _BLOCK, "num_warps": _WARPS, "enable_fp_fusion": False}
    padded = split | {"PADDED_SPLITS": triton.next_power_of_2(splits), "BITS": _BITS}
    grid = (num_rows, splits)
    peak_kernel[grid](logits, slots, *slot_table, peaks, *sizes, **split)
    top_k, top_p = (top_k_histograms, top_k_states), (top_p_histograms, top_p_states)
    for digit in range(digits):
        top_k_kernel[grid](logits, slots, *slot_table, peaks, *top_k, *sizes, num_rows, digit, **padded)
    for digit in range(digits):
        top_p_kernel[grid](logits, slots, *slot_table, peaks, *top_k, *top_p, *sizes, num_rows, digit, **padded)
    pick_kernel[grid](
        logits, slots, positions, *slot_table, peaks, *top_k, *top_p, scores, tokens, *sizes, num_rows, **padded
    )
    combine_kernel[(num_rows,)](
        scores, tokens, chosen, vocab_size, SPLITS=splits, PADDED_SPLITS=padded["PADDED_SPLITS"], num_warps=1
    )
    return chosen


def count(slots: torch.Tensor, token_ids: torch.Tensor, table: SlotTable) -> None:
    """See `gumbel.count`."""
    num_rows = len(slots)
    count_kernel[(triton.cdiv(num_rows, 128),)](
        slots, token_ids, table.met, table.vocab_size, num_rows, BLOCK=128, num_warps=4
    )

"""Sampling by the Gumbel-max trick in Triton kernels, without sorting and without waiting for the device. Launches
depend on the number of rows alone, so that a CUDA graph can hold them.

A draw from probabilities p is the token with the greatest log p + g, where the g are independent draws of the standard
Gumbel distribution (Gumbel 1954; Maddison, Tarlow, Minka 2014). Nothing is summed over the vocabulary, so a row can be
cut into parts that are computed in any order. The g of token i is made from output i of splitmix64 (Steele, Lea, Flood
2014), seeded with a hash of the request's seed and the token's position.

Filters apply in the order min_p, top_k, top_p; each filters the tokens that the previous one left. Of equally likely
tokens, those with the smallest ids stay. Masses are sums of integers (weights in units of 2**-40), so that the order of
addition does not change them.

A program (row, split) computes the tokens of one part of the vocabulary in one row. All parts have the same size,
whatever the number of rows, and programs exchange sums of integers only, so a row's token depends on nothing but the
row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inflight_engine.execution.sampling import slot_table as columns
from inflight_engine.execution.sampling.slot_table import SlotTable
from inflight_engine.execution.sampling.triton_filters import (
    MASS,
    STATE,
    before,
    descend,
    finish_top_k,
    top_k_kernel,
    top_p_kernel,
)
from inflight_engine.execution.sampling.triton_logits import (
    MIN_P,
    NUM_INTEGERS,
    NUM_NUMBERS,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    bias_kernel,
    key_of,
    load_edited,
    load_peak,
    logit_of,
    peak_kernel,
    weight_of,
)

_SPAN = 8192
"""Tokens per split."""
_BLOCK = 1024
_WARPS = 8
_BIASES = 256
"""Biases per program."""
_BITS = 4
"""Bits per radix digit. Must divide 32."""

_MOST_MET = tl.constexpr(columns.MOST_MET)


@triton.jit
def splitmix64(x: tl.tensor) -> tl.tensor:
    """Return the outputs of splitmix64 for uint64 states."""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def gumbel_noise(stream: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """Draw from the standard Gumbel distribution for some tokens of a row's stream; finite for every token."""
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
    """Pick a split's token with the greatest score: the logit where the row is greedy, else the logit over the
    temperature plus noise."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    temperature = tl.load(numbers + slot * NUM_NUMBERS + TEMPERATURE).to(tl.float32)
    min_p = tl.load(numbers + slot * NUM_NUMBERS + MIN_P).to(tl.float32)
    is_drawn = temperature > 0
    threshold, num_equal, place = tl.zeros((), tl.int64), tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    peak, stream = tl.zeros((), tl.float32), tl.zeros((), tl.uint64)
    if is_drawn:
        peak = load_peak(peaks, row, SPLITS, PADDED_SPLITS)
        seed = tl.load(integers + slot * NUM_INTEGERS + SEED).to(tl.uint64, bitcast=True)
        stream = splitmix64(splitmix64(seed) + tl.load(positions + row).to(tl.uint64))
        last = (32 // BITS - 1) * num_rows + row
        histogram = last * (SPLITS * (1 << BITS))
        if tl.load(integers + slot * NUM_INTEGERS + TOP_K) < vocab_size:
            threshold, num_equal, digit = finish_top_k(
                top_k_histograms, top_k_states, row, num_rows, SPLITS, PADDED_SPLITS, BITS
            )
            place = before(top_k_histograms + histogram, digit, split, PADDED_SPLITS, BITS)
        if tl.load(numbers + slot * NUM_NUMBERS + TOP_P) < 1:
            goal = tl.load(top_p_states + last * STATE + 1)
            is_top_ks = tl.load(top_p_states + last * STATE + 2) != 0
            if not is_top_ks:
                digit, goal = descend(top_p_histograms + histogram, goal, SPLITS, PADDED_SPLITS, BITS)
                threshold = tl.load(top_p_states + last * STATE) + digit
                place = before(top_p_histograms + histogram, digit, split, PADDED_SPLITS, BITS)
            mass = (weight_of(logit_of(threshold), peak, temperature, min_p) * MASS).to(tl.int64)
            mass = tl.maximum(mass, 1)
            num_equal = (goal + mass - 1) // mass
            if not is_top_ks:
                place = place // mass
    best, token = tl.full((), float("-inf"), tl.float32), tl.full((), 0, tl.int32) + vocab_size
    for start in range(0, SPAN, BLOCK):
        ids = split * SPAN + start + tl.arange(0, BLOCK)
        score = load_edited(logits + row * stride, slot, numbers, met, vocab_size, ids)
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
    """Pick the best of a row's splits, of equals the first: always a token of the vocabulary, whatever the logits."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, PADDED_SPLITS)
    score = tl.load(scores + row * SPLITS + splits, mask=splits < SPLITS, other=float("-inf"))
    token = tl.load(tokens + row * SPLITS + splits, mask=splits < SPLITS, other=vocab_size)
    best = tl.min(tl.where(score == tl.max(score, axis=0), token, vocab_size), axis=0)
    tl.store(chosen + row, tl.minimum(best, vocab_size - 1).to(tl.int64))


@triton.jit(do_not_specialize=["num_rows"])
def count_kernel(
    slots: tl.tensor,
    token_ids: tl.tensor,
    met: tl.tensor,
    vocab_size: tl.tensor,
    num_rows: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Count one token in each row's slot. Rows of padding write to one place."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < num_rows
    at = met + tl.load(slots + rows, mask=mask, other=0) * vocab_size + tl.load(token_ids + rows, mask=mask, other=0)
    number = tl.load(at, mask=mask, other=0).to(tl.int32)
    tl.store(at, tl.where(number < _MOST_MET, number + 2, number).to(tl.int16), mask=mask)


def choose(logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, table: SlotTable) -> torch.Tensor:
    """See `Sampler.choose`; the logits are as they were afterwards, and their last dimension is contiguous."""
    num_rows, vocab_size = logits.shape
    splits = triton.cdiv(vocab_size, _SPAN)
    device = logits.device
    # Not parts of one tensor: a kernel is compiled again for one that begins at no multiple of 16 bytes.
    peaks, scores = (torch.empty((num_rows, splits), dtype=torch.float32, device=device) for _ in range(2))
    tokens = torch.empty((num_rows, splits), dtype=torch.int32, device=device)
    digits = 32 // _BITS
    counts, states = (digits, num_rows, splits, 1 << _BITS), (digits, num_rows, STATE.value)
    top_k_histograms, top_p_histograms = torch.empty((2, *counts), dtype=torch.int64, device=device)
    top_k_states, top_p_states = torch.empty((2, *states), dtype=torch.int64, device=device)
    chosen = torch.empty(num_rows, dtype=torch.int64, device=device)

    unbiased = torch.empty((num_rows, columns.MOST_BIASES), dtype=torch.float32, device=device)

    biases = (table.integers, table.bias_tokens, table.bias_values, unbiased, logits.stride(0))
    bias_grid = (num_rows, triton.cdiv(columns.MOST_BIASES, _BIASES))
    slot_table = (table.numbers, table.integers, table.met)
    sizes = (logits.stride(0), vocab_size)
    split = {"SPLITS": splits, "SPAN": _SPAN, "BLOCK": _BLOCK, "num_warps": _WARPS, "enable_fp_fusion": False}
    padded = split | {"PADDED_SPLITS": triton.next_power_of_2(splits), "BITS": _BITS}
    grid = (num_rows, splits)
    bias_kernel[bias_grid](logits, slots, *biases, RESTORE=False, BLOCK=_BIASES, num_warps=1)
    peak_kernel[grid](logits, slots, table.numbers, table.met, peaks, *sizes, **split)
    top_k, top_p = (top_k_histograms, top_k_states), (top_p_histograms, top_p_states)
    for digit in range(digits):
        top_k_kernel[grid](logits, slots, *slot_table, peaks, *top_k, *sizes, num_rows, digit, **padded)
    for digit in range(digits):
        top_p_kernel[grid](logits, slots, *slot_table, peaks, *top_k, *top_p, *sizes, num_rows, digit, **padded)
    pick_kernel[grid](
        logits, slots, positions, *slot_table, peaks, *top_k, *top_p, scores, tokens, *sizes, num_rows, **padded
    )
    bias_kernel[bias_grid](logits, slots, *biases, RESTORE=True, BLOCK=_BIASES, num_warps=1)
    combine_kernel[(num_rows,)](
        scores,
        tokens,
        chosen,
        vocab_size,
        SPLITS=splits,
        PADDED_SPLITS=padded["PADDED_SPLITS"],
        num_warps=1,
        enable_fp_fusion=False,
    )
    return chosen


def count(slots: torch.Tensor, token_ids: torch.Tensor, table: SlotTable) -> None:
    """See `Sampler.count`."""
    num_rows = len(slots)
    count_kernel[(triton.cdiv(num_rows, 128),)](
        slots, token_ids, table.met, table.vocab_size, num_rows, BLOCK=128, num_warps=4, enable_fp_fusion=False
    )

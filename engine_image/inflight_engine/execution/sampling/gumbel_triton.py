"""Sampling by the Gumbel-max trick in Triton kernels, without sorting and without waiting for the device. Launches
depend on the number of rows alone, so that a CUDA graph can hold them.

A draw from probabilities p is the token with the greatest log p + g, where the g are independent draws of the standard
Gumbel distribution (Gumbel 1954; Maddison, Tarlow, Minka 2014). Nothing is summed over the vocabulary, so a row can be
cut into parts that are computed in any order. The g of token i is made from output i of splitmix64 (Steele, Lea, Flood
2014), seeded with a hash of the request's seed and the token's position.

Filters apply in the order min_p, top_k, top_p; each filters the tokens that the previous one left. Of equally likely
tokens, those with the smallest ids stay. Masses are sums of integers (weights in units of 2**-40), so that the order of
addition does not change them.

A program (row, split) computes the tokens of one part of the vocabulary in one row, and a filtered row has one program
more, which finds where its filters cut. All parts have the same size, whatever the number of rows, and programs
exchange sums of integers only, so a row's token depends on nothing but the row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inflight_engine.execution.sampling import slot_table as columns
from inflight_engine.execution.sampling.slot_table import SlotTable
from inflight_engine.execution.sampling.triton_filters import (
    BOUNDS,
    bound_kernel,
    cut_kernel,
    is_filtered,
    list_kernel,
    weigh_kernel,
)
from inflight_engine.execution.sampling.triton_logits import (
    MIN_P,
    NUM_INTEGERS,
    NUM_NUMBERS,
    SEED,
    TEMPERATURE,
    bias_kernel,
    key_of,
    load_edited,
    load_peak,
    peak_kernel,
    weight_of,
)

_SPAN = 8192
"""Tokens per split."""
_BLOCK = 1024
_WARPS = 4
_BIASES = 256
"""Biases per program."""
_BINS = 1024
"""Bins by which tokens are counted and weighed."""
_LISTED = 4096
"""Maximum number of tokens listed of a row."""
_WAYS = 16
"""Places tried at once in a search."""
_SEARCH_BLOCK = 256
_SEARCH_WARPS = 8

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


@triton.jit
def pick_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    positions: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    met: tl.tensor,
    peaks: tl.tensor,
    cuts: tl.tensor,
    scores: tl.tensor,
    tokens: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
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
    key, last = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    peak, stream = tl.zeros((), tl.float32), tl.zeros((), tl.uint64)
    if is_drawn:
        peak = load_peak(peaks, row, SPLITS, PADDED_SPLITS)
        seed = tl.load(integers + slot * NUM_INTEGERS + SEED).to(tl.uint64, bitcast=True)
        stream = splitmix64(splitmix64(seed) + tl.load(positions + row).to(tl.uint64))
        if is_filtered(numbers, integers, slot, vocab_size):
            key, last = tl.load(cuts + row * 2), tl.load(cuts + row * 2 + 1)
    # The best of every BLOCK-th token; of equals the first.
    bests = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_ids = tl.zeros((BLOCK,), tl.int32) + vocab_size
    for start in range(0, SPAN, BLOCK):
        ids = split * SPAN + start + tl.arange(0, BLOCK)
        score = load_edited(logits + row * stride, slot, numbers, met, vocab_size, ids)
        kept = (ids < vocab_size) & (score == score)
        if is_drawn:
            keys = key_of(score)
            kept = (weight_of(score, peak, temperature, min_p) > 0) & ((keys > key) | ((keys == key) & (ids <= last)))
            if tl.max(kept.to(tl.int32), axis=0) > 0:
                score = (score - peak) / temperature + gumbel_noise(stream, ids)
        better = kept & ((score > bests) | (best_ids == vocab_size))
        bests, best_ids = tl.where(better, score, bests), tl.where(better, ids, best_ids)
    best = tl.max(bests, axis=0)
    tl.store(scores + row * SPLITS + split, best)
    tl.store(tokens + row * SPLITS + split, tl.min(tl.where(bests == best, best_ids, vocab_size), axis=0))


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
    histograms = torch.zeros((num_rows, 2 * _BINS), dtype=torch.int64, device=device)
    bounds = torch.empty((num_rows, BOUNDS.value), dtype=torch.int64, device=device)
    lists = torch.empty((num_rows, _LISTED), dtype=torch.int32, device=device)
    cuts = torch.empty((num_rows, 2), dtype=torch.int64, device=device)
    chosen = torch.empty(num_rows, dtype=torch.int64, device=device)

    unbiased = torch.empty((num_rows, columns.MOST_BIASES), dtype=torch.float32, device=device)

    biases = (table.integers, table.bias_tokens, table.bias_values, unbiased, logits.stride(0))
    bias_grid = (num_rows, triton.cdiv(columns.MOST_BIASES, _BIASES))
    slot_table, sizes = (table.numbers, table.integers, table.met), (logits.stride(0), vocab_size)
    row = (logits, slots, *slot_table, peaks)
    grid, exact = (num_rows, splits), {"enable_fp_fusion": False}
    padded = exact | {"SPLITS": splits, "PADDED_SPLITS": triton.next_power_of_2(splits)}
    split = {"SPAN": _SPAN, "BLOCK": _BLOCK, "num_warps": _WARPS}
    binned = padded | {"BINS": _BINS}
    listed = binned | {"LISTED": _LISTED}
    bias_kernel[bias_grid](logits, slots, *biases, RESTORE=False, BLOCK=_BIASES, num_warps=1)
    peak_kernel[grid](logits, slots, table.numbers, table.met, peaks, *sizes, SPLITS=splits, **split, **exact)
    weigh_kernel[grid](*row, histograms, *sizes, **binned, **split)
    bound_kernel[(num_rows,)](
        slots, table.numbers, table.integers, histograms, bounds, vocab_size, BINS=_BINS, num_warps=4, **exact
    )
    list_kernel[grid](*row, bounds, lists, *sizes, **listed, **split)
    cut_kernel[(num_rows,)](
        *row, bounds, lists, cuts, *sizes, **listed, BLOCK=_SEARCH_BLOCK, WAYS=_WAYS, num_warps=_SEARCH_WARPS
    )
    pick_kernel[grid](logits, slots, positions, *slot_table, peaks, cuts, scores, tokens, *sizes, **padded, **split)
    bias_kernel[bias_grid](logits, slots, *biases, RESTORE=True, BLOCK=_BIASES, num_warps=1)
    combine_kernel[(num_rows,)](scores, tokens, chosen, vocab_size, **padded, num_warps=1)
    return chosen


def count(slots: torch.Tensor, token_ids: torch.Tensor, table: SlotTable) -> None:
    """See `Sampler.count`."""
    num_rows = len(slots)
    count_kernel[(triton.cdiv(num_rows, 128),)](
        slots, token_ids, table.met, table.vocab_size, num_rows, BLOCK=128, num_warps=4, enable_fp_fusion=False
    )

"""Rows of logits as sampling kernels see them: edited, and each logit's place and weight."""

from __future__ import annotations

import triton
import triton.language as tl

from inflight_engine.execution.sampling import slot_table as columns

NUM_NUMBERS = tl.constexpr(6)
NUM_INTEGERS = tl.constexpr(3)
TEMPERATURE, MIN_P, TOP_P = (tl.constexpr(i) for i in (columns.TEMPERATURE, columns.MIN_P, columns.TOP_P))
SEED, TOP_K = (tl.constexpr(i) for i in (columns.SEED, columns.TOP_K))
_REPETITION, _PRESENCE, _FREQUENCY = (
    tl.constexpr(i) for i in (columns.REPETITION, columns.PRESENCE, columns.FREQUENCY)
)
_NUM_BIASES = tl.constexpr(columns.NUM_BIASES)
_MOST_BIASES = tl.constexpr(columns.MOST_BIASES)


@triton.jit
def bias_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    integers: tl.tensor,
    bias_tokens: tl.tensor,
    bias_values: tl.tensor,
    unbiased: tl.tensor,
    stride: tl.tensor,
    RESTORE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Kernel that adds the biases of each row to its logits, and keeps the logits that it changes; with `RESTORE`, it
    puts them back.

    Args:
        unbiased: float32 [rows, MOST_BIASES].
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    places = part * BLOCK + tl.arange(0, BLOCK)
    mask = places < tl.load(integers + slot * NUM_INTEGERS + _NUM_BIASES)
    biases = slot * _MOST_BIASES + places
    at = logits + row * stride + tl.load(bias_tokens + biases, mask=mask, other=0)
    kept = unbiased + row * _MOST_BIASES + places
    if RESTORE:
        tl.store(at, tl.load(kept, mask=mask), mask=mask)
    else:
        logit = tl.load(at, mask=mask)
        tl.store(kept, logit, mask=mask)
        tl.store(at, logit + tl.load(bias_values + biases, mask=mask), mask=mask)


@triton.jit
def load_edited(
    logits: tl.tensor,
    slot: tl.tensor,
    numbers: tl.tensor,
    met: tl.tensor,
    vocab_size: tl.tensor,
    ids: tl.tensor,
) -> tl.tensor:
    """Load a row's logits, which have their biases, of some tokens after penalties; behind the vocabulary, -inf."""
    inside = ids < vocab_size
    edited = tl.load(logits + ids, mask=inside, other=float("-inf"))
    repetition = tl.load(numbers + slot * NUM_NUMBERS + _REPETITION).to(tl.float32)
    presence = tl.load(numbers + slot * NUM_NUMBERS + _PRESENCE).to(tl.float32)
    frequency = tl.load(numbers + slot * NUM_NUMBERS + _FREQUENCY).to(tl.float32)
    if (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0):
        number = tl.load(met + slot * vocab_size + ids, mask=inside, other=0).to(tl.int32)
        count = number >> 1
        repeated = tl.where(edited > 0, tl.math.div_rn(edited, repetition), edited * repetition)
        edited = tl.where(number > 0, repeated, edited) - frequency * count.to(tl.float32)
        edited = tl.where(count > 0, edited - presence, edited)
    return edited + 0.0  # no negative zero


@triton.jit
def key_of(logits: tl.tensor) -> tl.tensor:
    """Return the places of logits in the order of all floats, int64 [0, 2**32). No logit has place 0."""
    bits = logits.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def logit_of(key: tl.tensor) -> tl.tensor:
    """Return the logits at some places, the inverse of `key_of`."""
    bits = (key - 2147483648).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(logits: tl.tensor, peak: tl.tensor, temperature: tl.tensor, min_p: tl.tensor) -> tl.tensor:
    """Return the unnormalised probability: 1 for the likeliest token, 0 for tokens that min_p drops."""
    weights = tl.exp((logits - peak) / temperature)
    return tl.where(weights >= min_p, weights, 0.0)


@triton.jit
def peak_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    numbers: tl.tensor,
    met: tl.tensor,
    peaks: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    SPLITS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Kernel that finds the greatest logit of each split, in rows that draw."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if tl.load(numbers + slot * NUM_NUMBERS + TEMPERATURE).to(tl.float32) > 0:
        highest = tl.full((BLOCK,), float("-inf"), tl.float32)
        for start in range(0, SPAN, BLOCK):
            ids = split * SPAN + start + tl.arange(0, BLOCK)
            edited = load_edited(logits + row * stride, slot, numbers, met, vocab_size, ids)
            highest = tl.maximum(highest, edited)
        tl.store(peaks + row * SPLITS + split, tl.max(highest, axis=0))


@triton.jit
def load_peak(peaks: tl.tensor, row: tl.tensor, SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr) -> tl.tensor:
    """Return a row's greatest logit."""
    splits = tl.arange(0, PADDED_SPLITS)
    return tl.max(tl.load(peaks + row * SPLITS + splits, mask=splits < SPLITS, other=float("-inf")), axis=0)

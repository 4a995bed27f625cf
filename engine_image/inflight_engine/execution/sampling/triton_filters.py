"""The tokens that top_k and top_p keep of a row of logits, found without sorting and without the host.

A key (a logit's place in the order of all floats) names them: tokens above it stay, and the first few of those at it.
Tokens fall into bins by how far they are below the likeliest one. The bins' numbers and masses tell in which few of
them top_k and top_p cut; only the tokens of these are searched for the key, by one program a row. They are listed for
it where the list holds them: where it does not, as with thousands of logits that are nearly equal, the program reads
the whole row again and again. Rows without a filter leave all of this at once.
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

_MASS = tl.constexpr(2.0**40)
"""Mass of a weight of 1; masses are integers."""
_NEAR, _FARTHEST = tl.constexpr(16.0), tl.constexpr(104.0)
"""Temperatures below the likeliest token: within the first, tokens are near, and have bins of their masses too; behind
the second, a weight is 0 in float32."""
_FAR_SHARE = tl.constexpr(8)
"""Number of bins for each bin of far tokens: those are many, but few rows are cut there."""
_STEEPEST = tl.constexpr(1.0e30)
"""Maximum number of bins in a unit of the logits, so that a tiny temperature makes none infinite."""
BOUNDS = tl.constexpr(8)
"""Number of columns of a row's bounds, see `bound_kernel`."""
_COUNT, _MASS_ABOVE, _ID = (tl.constexpr(i) for i in range(3))
"""Sums that a search goes by: the number of tokens at and above a key; their mass; the number of those with one key up
to an id."""


@triton.jit
def is_filtered(numbers: tl.tensor, integers: tl.tensor, slot: tl.tensor, vocab_size: tl.tensor) -> tl.tensor:
    """Return whether a slot draws, and not from all tokens."""
    is_cut = tl.load(integers + slot * NUM_INTEGERS + TOP_K) < vocab_size
    is_cut |= tl.load(numbers + slot * NUM_NUMBERS + TOP_P) < 1
    return is_cut & (tl.load(numbers + slot * NUM_NUMBERS + TEMPERATURE).to(tl.float32) > 0)


@triton.jit
def mass_of(weights: tl.tensor) -> tl.tensor:
    """Return weights as integers."""
    return (weights * _MASS).to(tl.int64)


@triton.jit
def load_weighed(
    logits: tl.tensor,
    slot: tl.tensor,
    numbers: tl.tensor,
    met: tl.tensor,
    vocab_size: tl.tensor,
    peak: tl.tensor,
    ids: tl.tensor,
    BINS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Load some tokens of a row; returns keys, weights and bins. Tokens behind the vocabulary and those that min_p
    drops have no weight."""
    temperature = tl.load(numbers + slot * NUM_NUMBERS + TEMPERATURE).to(tl.float32)
    min_p = tl.load(numbers + slot * NUM_NUMBERS + MIN_P).to(tl.float32)
    edited = load_edited(logits, slot, numbers, met, vocab_size, ids)
    weights = weight_of(edited, peak, temperature, min_p)
    num_near: tl.constexpr = BINS - BINS // _FAR_SHARE
    # By products, which no rounding lets fall where the logit rises.
    below = peak - edited
    near = below * tl.minimum(num_near / _NEAR / temperature, _STEEPEST)
    slope: tl.constexpr = (BINS - num_near) / (_FARTHEST - _NEAR)
    far = below * tl.minimum(slope / temperature, _STEEPEST) + (num_near - slope * _NEAR)
    bins = tl.minimum(tl.minimum(near, far), BINS - 1.0)
    return key_of(edited), weights, tl.where(weights > 0, bins, 0.0).to(tl.int32)


@triton.jit
def weigh_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    met: tl.tensor,
    peaks: tl.tensor,
    histograms: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
) -> None:
    """Kernel that adds the number and mass of a split's tokens to the bins of its row.

    Args:
        histograms: int64 [rows, 2 BINS], zeros: numbers, then masses, of which the first far bin gets those of all.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if is_filtered(numbers, integers, slot, vocab_size):
        peak = load_peak(peaks, row, SPLITS, PADDED_SPLITS)
        histogram = histograms + row * (2 * BINS)
        num_far: tl.constexpr = BINS // _FAR_SHARE
        far = tl.arange(0, num_far)
        counts, far_mass = tl.zeros((num_far,), tl.int32), tl.zeros((BLOCK,), tl.int64)
        for start in range(0, SPAN, BLOCK):
            ids = split * SPAN + start + tl.arange(0, BLOCK)
            _, weights, bins = load_weighed(logits + row * stride, slot, numbers, met, vocab_size, peak, ids, BINS)
            masses = mass_of(weights)
            # Most tokens are far: one after the other they would be waited for.
            is_far = bins >= BINS - num_far
            counts += tl.histogram(tl.maximum(bins - (BINS - num_far), 0), num_far, mask=is_far & (weights > 0)).to(
                tl.int32
            )
            far_mass += tl.where(is_far, masses, 0)
            is_near = (weights > 0) & (bins < BINS - num_far)
            if tl.max(is_near.to(tl.int32), axis=0) > 0:
                tl.atomic_add(histogram + bins, is_near.to(tl.int64), mask=is_near, sem="relaxed")
                tl.atomic_add(histogram + BINS + bins, masses, mask=is_near, sem="relaxed")
        tl.atomic_add(histogram + BINS - num_far + far, counts.to(tl.int64), mask=counts > 0, sem="relaxed")
        tl.atomic_add(histogram + 2 * BINS - num_far, tl.sum(far_mass, axis=0), sem="relaxed")


@triton.jit
def bound_kernel(
    slots: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    histograms: tl.tensor,
    bounds: tl.tensor,
    vocab_size: tl.tensor,
    BINS: tl.constexpr,
) -> None:
    """Kernel that finds the bins of a row in which top_k or top_p cut.

    Args:
        histograms: of `weigh_kernel`.
        bounds: int64 [rows, BOUNDS]: how many tokens are listed, first bin, last bin, tokens in these (0: no cut),
            whether top_k drops tokens, number and mass of the tokens in higher bins, mass of all.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if is_filtered(numbers, integers, slot, vocab_size):
        top_k = tl.load(integers + slot * NUM_INTEGERS + TOP_K)
        top_p = tl.load(numbers + slot * NUM_NUMBERS + TOP_P)
        num_near: tl.constexpr = BINS - BINS // _FAR_SHARE
        bins = tl.arange(0, BINS)
        counts = tl.load(histograms + row * (2 * BINS) + bins)
        masses = tl.load(histograms + row * (2 * BINS) + BINS + bins)
        total = tl.sum(masses, axis=0)
        last, least = tl.zeros((), tl.int32) + (BINS - 1), total
        is_k = tl.sum(counts, axis=0) > top_k
        if is_k:
            last = tl.sum((tl.cumsum(counts, axis=0) < top_k).to(tl.int32), axis=0)
            least = tl.sum(tl.where(bins < tl.minimum(last, num_near), masses, 0), axis=0)
        first = last
        if top_p < 1:
            # top_k leaves at least this mass, so top_p cuts no higher.
            goal = tl.ceil(top_p * least.to(tl.float64)).to(tl.int64)
            first = tl.minimum(tl.sum((tl.cumsum(masses, axis=0) < goal).to(tl.int32), axis=0), last)
            if (not is_k) & (first < num_near):
                last = first
        is_cut = is_k | (top_p < 1)
        size = tl.sum(tl.where((bins >= first) & (bins <= last) & is_cut, counts, 0), axis=0)
        to = bounds + row * BOUNDS
        tl.store(to, 0)
        tl.store(to + 1, first)
        tl.store(to + 2, last)
        tl.store(to + 3, size)
        tl.store(to + 4, is_k.to(tl.int64))
        tl.store(to + 5, tl.sum(tl.where(bins < first, counts, 0), axis=0))
        tl.store(to + 6, tl.sum(tl.where(bins < first, masses, 0), axis=0))
        tl.store(to + 7, total)


@triton.jit
def list_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    met: tl.tensor,
    peaks: tl.tensor,
    bounds: tl.tensor,
    lists: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    LISTED: tl.constexpr,
) -> None:
    """Kernel that lists the tokens of a split that are in the bins in which its row is cut.

    Args:
        bounds: of `bound_kernel`.
        lists: int32 [rows, LISTED], in any order.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row)
    if is_filtered(numbers, integers, slot, vocab_size):
        bound = bounds + row * BOUNDS
        lowest, highest, size = tl.load(bound + 1), tl.load(bound + 2), tl.load(bound + 3)
        if (size > 0) & (size <= LISTED):
            peak = load_peak(peaks, row, SPLITS, PADDED_SPLITS)
            for start in range(0, SPAN, BLOCK):
                ids = split * SPAN + start + tl.arange(0, BLOCK)
                _, weights, bins = load_weighed(logits + row * stride, slot, numbers, met, vocab_size, peak, ids, BINS)
                is_cut = ((weights > 0) & (bins >= lowest) & (bins <= highest)).to(tl.int32)
                count = tl.sum(is_cut, axis=0)
                if count > 0:
                    listed = tl.atomic_add(bound, count.to(tl.int64), sem="relaxed")
                    places = listed + tl.cumsum(is_cut, axis=0) - 1
                    tl.store(lists + row * LISTED + places, ids, mask=is_cut > 0)


@triton.jit
def load_cut(
    cut: tl.tuple,
    start: tl.tensor,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return keys, weights, whether they are in the bins in which a row is cut, and ids: of some of the listed tokens,
    or of all where these are more than the list holds.

    Args:
        cut: a row's logits, slot, numbers, met, vocabulary and peak, as of `load_weighed`; its list, whether that holds
            all, and how many tokens there are to go through; first and last bin.
    """
    logits, slot, numbers, met, vocab_size, peak, listed, is_listed, end, lowest, highest = cut
    places = start + tl.arange(0, BLOCK)
    ids = places
    if is_listed:
        ids = tl.load(listed + places, mask=places < end, other=0)
    keys, weights, bins = load_weighed(logits, slot, numbers, met, vocab_size, peak, ids, BINS)
    return keys, weights, (places < end) & (weights > 0) & (bins >= lowest) & (bins <= highest), ids


@triton.jit
def sums_of(
    cut: tl.tuple,
    key: tl.tensor,
    at: tl.tensor,
    KIND: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return sums over the tokens of the bins in which a row is cut, int64 [WAYS].

    Args:
        cut: of `load_cut`.
        at: [WAYS]. _COUNT: sums are the number of tokens whose key is at least that; _MASS_ABOVE: the mass of those
            that are also above `key`; _ID: the number of those at `key` whose id is at most `vocab_size` less that.
    """
    vocab_size, end = cut[4], cut[8]
    sums = tl.zeros((BLOCK, at.shape[0]), tl.int64)
    for start in range(0, end, BLOCK):
        keys, weights, is_cut, ids = load_cut(cut, start, BINS, BLOCK)
        if KIND == _COUNT:
            values, amounts = keys, is_cut.to(tl.int64)
        elif KIND == _MASS_ABOVE:
            values, amounts = keys, tl.where(is_cut & (keys > key), mass_of(weights), 0)
        else:
            values, amounts = (vocab_size - ids).to(tl.int64), (is_cut & (keys == key)).to(tl.int64)
        sums += tl.where(values[:, None] >= at[None, :], amounts[:, None], 0)
    return tl.sum(sums, axis=0)


@triton.jit
def keys_of(
    cut: tl.tuple,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the least and the greatest key of the tokens in the bins in which a row is cut."""
    least, greatest = tl.full((BLOCK,), 1 << 32, tl.int64), tl.zeros((BLOCK,), tl.int64)
    for start in range(0, cut[8], BLOCK):
        keys, _, is_cut, _ = load_cut(cut, start, BINS, BLOCK)
        least = tl.where(is_cut, tl.minimum(least, keys), least)
        greatest = tl.where(is_cut, tl.maximum(greatest, keys), greatest)
    return tl.min(least, axis=0), tl.max(greatest, axis=0)


@triton.jit
def search(
    cut: tl.tuple,
    key: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    goal: tl.tensor,
    KIND: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the greatest place below `end` at which the sum reaches the goal, which it does at `first`, and the sum
    behind that place. Arguments as of `sums_of`."""
    ways = tl.arange(0, WAYS)
    above = tl.zeros((), tl.int64)
    while end - first > 1:
        step = tl.cdiv(end - first, WAYS)
        at = tl.minimum(first + step * (ways + 1), end)
        sums = sums_of(cut, key, at, KIND, BINS, BLOCK)
        num_reached = tl.sum((sums >= goal).to(tl.int32), axis=0)
        above = tl.sum(tl.where(ways == num_reached, sums, 0), axis=0)
        end = tl.minimum(end, first + step * (num_reached + 1))
        first += step * num_reached
    return first, above


@triton.jit
def cut_kernel(
    logits: tl.tensor,
    slots: tl.tensor,
    numbers: tl.tensor,
    integers: tl.tensor,
    met: tl.tensor,
    peaks: tl.tensor,
    bounds: tl.tensor,
    lists: tl.tensor,
    cuts: tl.tensor,
    stride: tl.tensor,
    vocab_size: tl.tensor,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    LISTED: tl.constexpr,
    WAYS: tl.constexpr,
) -> None:
    """Kernel that finds the key of a row, and the last token at it that stays.

    Args:
        bounds, lists: of `list_kernel`.
        cuts: int64 [rows, 2]: key and token; a key of 0: all stay.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if is_filtered(numbers, integers, slot, vocab_size):
        bound = bounds + row * BOUNDS
        lowest, highest, size = tl.load(bound + 1), tl.load(bound + 2), tl.load(bound + 3)
        key, last = tl.zeros((), tl.int64), tl.zeros((), tl.int64) + vocab_size
        if size > 0:
            peak = load_peak(peaks, row, SPLITS, PADDED_SPLITS)
            is_listed = size <= LISTED
            end = tl.where(is_listed, size, vocab_size).to(tl.int32)
            listed = lists + row * LISTED
            cut = (
                logits + row * stride, slot, numbers, met, vocab_size, peak, listed, is_listed, end, lowest, highest,
            )  # fmt: skip
            top_k = tl.load(integers + slot * NUM_INTEGERS + TOP_K)
            top_p = tl.load(numbers + slot * NUM_NUMBERS + TOP_P)
            temperature = tl.load(numbers + slot * NUM_NUMBERS + TEMPERATURE).to(tl.float32)
            is_k = tl.load(bound + 4) != 0
            least, greatest = keys_of(cut, BINS, BLOCK)
            num_equal = tl.zeros((), tl.int64)
            if is_k:
                goal = top_k - tl.load(bound + 5)
                key, above = search(cut, key, least, greatest + 1, goal, _COUNT, BINS, BLOCK, WAYS)
                num_equal = goal - above
            if top_p < 1:
                before, total, mass = tl.load(bound + 6), tl.load(bound + 7), tl.zeros((), tl.int64)
                inside = total
                if is_k:
                    mass = mass_of(weight_of(logit_of(key), peak, temperature, 0.0))
                    sums = sums_of(cut, key, tl.zeros((WAYS,), tl.int64), _MASS_ABOVE, BINS, BLOCK)
                    inside = tl.max(sums, axis=0)
                    total = before + inside + num_equal * mass
                goal = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64) - before
                if inside < goal:  # top_p keeps some of the tokens at top_k's key
                    goal -= inside
                else:
                    key, above = search(cut, key, least, greatest + 1, goal, _MASS_ABOVE, BINS, BLOCK, WAYS)
                    goal -= above
                    mass = mass_of(weight_of(logit_of(key), peak, temperature, 0.0))
                num_equal = tl.cdiv(goal, tl.maximum(mass, 1))
            sums = sums_of(cut, key, tl.zeros((WAYS,), tl.int64), _ID, BINS, BLOCK)
            if tl.max(sums, axis=0) > num_equal:
                place, _ = search(cut, key, tl.zeros((), tl.int64), last + 1, num_equal, _ID, BINS, BLOCK, WAYS)
                last = vocab_size - place
        tl.store(cuts + row * 2, key)
        tl.store(cuts + row * 2 + 1, last)

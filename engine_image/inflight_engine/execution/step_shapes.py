"""The shapes of steps that get a CUDA graph, and the choice of a shape for a step.

A step of n decodes runs in a shape of n rows or a few more; a step with chunks in one of at least as many tokens and at
least as many sequences. What padding costs decides how far apart the shapes may be:
- Tokens: a product of up to some 300 tokens is bound by reading the weights, which padding does not read again; beyond,
  each padded token costs as much as another. So sizes are far apart at first, then 64 tokens.
- Sequences: each has a row of logits. Up to some 64 rows the head's product costs what one row costs, reading the
  head. Beyond, a padded row costs its share of the product, and of the search through the vocabulary. Attention's
  programs for a row without keys return at once. So three sizes for each number of tokens: mostly chunks, half and
  half, mostly decodes.

Steps of more than 512 tokens keep a GPU busy for longer than their launches take one by one, and have no graphs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from inflight_engine.execution.attention.base import StepShape

_CHUNK_TOKENS = (16, 32, 64, 128, 192, 256, 320, 384, 448, 512)
_MIN_SEQUENCES = 8


def graph_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[StepShape, ...]:
    """Return all shapes, ascending by tokens, then sequences."""
    return tuple(sorted(decode_shapes(max_num_seqs) + chunk_shapes(max_num_seqs, max_num_batched_tokens)))


def decode_shapes(max_num_seqs: int) -> tuple[StepShape, ...]:
    """Shapes of steps that only decode, ascending: 1, 2, 4, 8 rows, then multiples of 8 up to 64, of 16 up to 256, of
    32 beyond, and the capacity itself.

    Matrix products compute whole tiles of 8 rows or more anyway, and at most 7 rows are padding below 64, 15 below 256
    and 31 beyond. More sizes would cost start-up time: these are 23 for 256.
    """
    sizes = {1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)}
    sizes = {size for size in sizes if size < max_num_seqs} | {max_num_seqs}
    return tuple(StepShape(size, size) for size in sorted(sizes))


def chunk_shapes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[StepShape, ...]:
    """Shapes of steps with chunks, ascending by tokens, then sequences: 28 for 256 sequences."""
    largest = min(_CHUNK_TOKENS[-1], max_num_batched_tokens)
    shapes = set()
    for num_tokens in {size for size in _CHUNK_TOKENS if size < largest} | {largest}:
        most = min(num_tokens - 1, max_num_seqs)
        wanted = {max(num_tokens // 8, _MIN_SEQUENCES), num_tokens // 2, most}
        shapes |= {StepShape(num_tokens, min(size, most)) for size in wanted if most > 0}
    return tuple(sorted(shapes))


def fitting_shape(
    shapes: Sequence[StepShape], num_tokens: int, num_sequences: int, *, decodes_only: bool
) -> StepShape | None:
    """Return the least of the ascending `shapes` that holds a step; None: none does."""
    for shape in shapes[bisect_left(shapes, (num_tokens, num_sequences)) :]:
        if shape.num_sequences >= num_sequences and shape.decodes_only == decodes_only:
            return shape
    return None

"""A step for which the device has no memory is computed in pieces, one after another.

A piece is a range of the packed tokens. Any cut is right: decodes are independent of each other, the rest of a chunk
attends to the keys and values that its beginning wrote, and a sequence that shares blocks of another one of the same
step comes behind it. What an attempt that failed has written is written again with the same values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch

from inflight_engine.execution.attention.base import AttentionBatch, ChunkSpan
from inflight_engine.execution.batch import PackedStep, PromptRows

log = logging.getLogger(__name__)

LEAST_TOKENS = 64
"""Of a piece."""

_MOST_PIECES = 128
"""Of a step, about: each takes some ten milliseconds, in which the step's decodes wait; and a step that takes many
seconds more than others of its size is taken for one that hangs."""

_MOST_TOKENS = 1 << 31
"""More than any step has."""

_STEPS_UNTIL_LARGER = 128
"""Without a failure, until pieces twice as large are tried."""

_Result = TypeVar("_Result")


class Pieces:
    """How many tokens are computed at once, by what failed lately.

    Args:
        give_back: returns memory to the device that is only kept for later allocations.

    Attributes:
        largest: tokens of a piece.
        ran_out: whether an attempt of the last step had no memory.
        failed_slots: of the last step, whose chunk failed in a piece of the smallest size.
    """

    def __init__(self, give_back: Callable[[], None]) -> None:
        self.largest = _MOST_TOKENS
        self.ran_out = False
        self.failed_slots: list[int] = []
        self._give_back = give_back
        self._steps_since = 0

    def compute(
        self, packed: PackedStep, compute: Callable[[PackedStep], _Result]
    ) -> Iterator[tuple[PackedStep, _Result]]:
        """A step's pieces with their results, in order; each is computed when it is asked for.

        Args:
            compute: may raise torch.OutOfMemoryError as long as calling it again with the same tokens is right.

        Raises:
            torch.OutOfMemoryError: decodes failed in a piece of the smallest size, or all there is to compute did.
        """
        self.ran_out, self.failed_slots = False, []
        self._steps_since += 1
        if self._steps_since >= _STEPS_UNTIL_LARGER:
            self.largest = min(2 * self.largest, _MOST_TOKENS)
            self._steps_since = 0
        first, num_tokens, num_computed, failure = 0, len(packed.positions), 0, ""
        least = max(LEAST_TOKENS, num_tokens // _MOST_PIECES)
        while first < num_tokens:
            largest = max(self.largest, least)
            last = _end(packed, first, largest, at_least=largest == least)
            piece = packed if last - first == num_tokens else piece_of(packed, first, last)
            try:
                result = [compute(piece)]
            except torch.OutOfMemoryError as error:
                # Not the error: its traceback holds tensors, which have to go before the next attempt.
                result, failure = [], str(error)
            if result:
                yield piece, result.pop()
                first, num_computed = last, num_computed + 1
                continue
            self.ran_out = True
            if largest > least:
                self._shrink(last - first, least, packed, failure)
                continue
            if not piece.attention.chunks:
                raise torch.OutOfMemoryError(failure)
            log.error("out of memory for %d tokens of one chunk; its request is aborted: %s", last - first, failure)
            self.failed_slots.append(piece.attention.chunks[0].slot)
            first = _chunk_end(packed, first)
        if not num_computed:
            raise torch.OutOfMemoryError(failure)

    def _shrink(self, num_tokens: int, least: int, packed: PackedStep, failure: str) -> None:
        """So many tokens at once were too many, of this step; never fewer than `least`."""
        self.largest = max(least, num_tokens // 2)
        self._steps_since = 0
        log.warning(
            "out of memory for %d tokens of a step of %d (%d decodes, %d prefill chunks); it is computed in pieces of "
            "at most %d: %s",
            num_tokens,
            len(packed.positions),
            len(packed.attention.decode_slots),
            len(packed.attention.chunks),
            self.largest,
            failure,
        )
        self._give_back()


def piece_of(packed: PackedStep, first: int, last: int) -> PackedStep:
    """The packed tokens [first, last) as a step of their own."""
    attention, rows = packed.attention, packed.sampled_rows
    if rows is None:
        rows = np.arange(len(packed.positions))
    begin, end = np.searchsorted(rows, (first, last))
    chunks = []
    for chunk in attention.chunks:
        own_first, own_last = max(first, chunk.first), min(last, chunk.first + chunk.length)
        if own_first < own_last:
            start = chunk.start + own_first - chunk.first
            chunks.append(ChunkSpan(chunk.slot, own_first - first, own_last - own_first, start))
    return PackedStep(
        token_slots=packed.token_slots[first:last],
        token_ids=packed.token_ids[first:last] if packed.token_ids is not None and chunks else None,
        positions=packed.positions[first:last],
        attention=AttentionBatch(
            kv_slots=attention.kv_slots[first:last],
            decode_slots=attention.decode_slots[first:last],
            decode_context_lens=attention.decode_context_lens[first:last],
            chunks=tuple(chunks),
            block_table=attention.block_table,
            changed_cells=attention.changed_cells,
        ),
        sampled_rows=rows[begin:end] - first if chunks else None,
        sampled_slots=packed.sampled_slots[begin:end],
        sampled_positions=packed.sampled_positions[begin:end],
        prompts=None if packed.prompts is None else _prompts_of(packed.prompts, first, last),
    )


def _prompts_of(prompts: PromptRows, first: int, last: int) -> PromptRows | None:
    """Those that follow the packed tokens [first, last)."""
    begin, end = np.searchsorted(prompts.rows, (first, last)).tolist()
    spans, behind = [], 0
    for span in prompts.spans:
        at, behind = behind, behind + span.length
        own_begin, own_end = max(begin, at), min(end, behind)
        if own_begin < own_end:
            spans.append(span._replace(first=span.first + own_begin - at, length=own_end - own_begin))
    return PromptRows(prompts.rows[begin:end] - first, prompts.token_ids[begin:end], tuple(spans)) if spans else None


def _end(packed: PackedStep, first: int, largest: int, *, at_least: bool) -> int:
    """Where the piece that begins at a token ends. In a step that is cut decodes have pieces of their own, which a CUDA
    graph may hold; and a piece of the smallest size (`at_least`) is of one chunk, so that it is known whose fails."""
    num_tokens, num_decodes = len(packed.positions), len(packed.attention.decode_slots)
    if num_tokens <= largest and not at_least:
        return num_tokens
    last = min(first + largest, num_tokens)
    if first < num_decodes:
        return min(last, num_decodes)
    return min(last, _chunk_end(packed, first)) if at_least else last


def _chunk_end(packed: PackedStep, token: int) -> int:
    """Where the chunk of a packed token ends."""
    return next(chunk.first + chunk.length for chunk in packed.attention.chunks if token < chunk.first + chunk.length)

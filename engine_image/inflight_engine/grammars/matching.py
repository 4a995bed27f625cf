"""A request's place in its grammar: the tokens that it may sample next, and the end of its text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from inflight_engine.request import SamplingParams

Bits = npt.NDArray[np.int32]
"""Tokens of a vocabulary as bits, int32 [ceil(size / 32)]: token i is bit i % 32 of word i // 32."""

_TAKEN_BY_NO_GRAMMAR = "the grammar does not allow the tokens that the answer has"


class Matching:
    """Follows the tokens of one answer.

    A token that ends the request (`stop_token_ids`) is withheld until `min_tokens`, and an end-of-sequence token that
    does not end the request always; unless the grammar allows nothing else.

    Args:
        matcher: at the start of the grammar; owned.
        sampling: with a grammar.
        eos_token_ids: allowed where the text may end.

    Attributes:
        error: why no token can follow; empty: one can.
    """

    def __init__(self, matcher: LLMatcher, sampling: SamplingParams, eos_token_ids: Iterable[int]) -> None:
        assert sampling.grammar is not None
        self.error = ""
        self._matcher = matcher
        self._after = sampling.grammar.after
        self._recent: tuple[int, ...] = ()
        self._on = not self._after
        self._stops = _words(sampling.stop_token_ids)
        self._unused_eos = _words(set(eos_token_ids).difference(sampling.stop_token_ids))
        self._num_until_stop = sampling.min_tokens

    @property
    def complete(self) -> bool:
        """Nothing can follow the text."""
        return self._on and not self.error and self._matcher.is_stopped()

    def take(self, token_id: int) -> None:
        """Go on by a token of the answer."""
        self._num_until_stop -= 1
        if self._on:
            if not self.error and not self._matcher.consume_token(token_id):
                self.error = self._matcher.get_error() or _TAKEN_BY_NO_GRAMMAR
            return
        self._recent = (*self._recent, token_id)[-len(self._after) :]
        self._on = self._recent == self._after

    def fill(self, bits: Bits) -> None:
        """Set the bits of the tokens that may come next."""
        if not self._on:
            bits.fill(-1)
        else:
            self._fill(bits)
            self._withhold(bits, self._unused_eos)
        if self._num_until_stop > 0:
            self._withhold(bits, self._stops)

    def _fill(self, bits: Bits) -> None:
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            self.error = self._matcher.get_error()

    def _withhold(self, bits: Bits, words: tuple[npt.NDArray[np.intp], Bits]) -> None:
        index, kept = words
        if not len(index):
            return
        before = bits[index]
        np.bitwise_and.at(bits, index, kept)
        if not bits.any():
            bits[index] = before


def _words(token_ids: Iterable[int]) -> tuple[npt.NDArray[np.intp], Bits]:
    """Return the word of each token, and a mask that clears its bit."""
    ids = np.array(sorted(token_ids), np.int64)
    return (ids // 32).astype(np.intp), (~(1 << (ids % 32))).astype(np.int32)

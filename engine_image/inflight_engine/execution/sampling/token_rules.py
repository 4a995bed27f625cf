"""`bad_words` and `allowed_tokens`: the tokens that a request may sample next.

As in vLLM, a word is banned by its last token, where the tokens before it are the latest of the answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inflight_engine.grammars.matching import Bits
from inflight_engine.request import SamplingParams

_NOTHING_LEFT = "allowed_token_ids, bad_words, min_tokens and the grammar together leave no token"


class TokenMask(Protocol):
    """The tokens that may come next in an answer, which follows its tokens; `grammars.matching.Matching` is one."""

    @property
    def error(self) -> str:
        """Why no token can follow; empty: one can."""

    @property
    def complete(self) -> bool:
        """Nothing can follow the text."""

    @property
    def free(self) -> bool:
        """All tokens may come next."""

    def take(self, token_id: int) -> None:
        """Go on by a token of the answer."""

    def allows(self, token_id: int) -> bool:
        """Return whether a token is known to be one that `fill` finds; False: it may be nevertheless."""

    def fill(self, bits: Bits) -> None:
        """Set the bits of the tokens that may come next."""

    def forced(self) -> tuple[list[int], bool]:
        """Return tokens each of which is the only one after those before it, where that is known, and whether nothing
        can follow them."""

    def after(self, token_ids: list[int]) -> TokenMask:
        """Return the place after these tokens of the answer, which begin with those that were taken. Only after
        `forced` found some."""


class TokenRules:
    """A `TokenMask`.

    Args:
        sampling: with `bad_words` or `allowed_tokens`.
        grammar: the place in the request's grammar or thinking; owned. None: it has neither.
    """

    def __init__(self, sampling: SamplingParams, grammar: TokenMask | None) -> None:
        self._grammar = grammar
        self._error = ""
        self._allowed = _words_of(sampling.allowed_tokens) if sampling.allowed_tokens else None
        self._last_tokens = _by_beginning(sampling.bad_words)
        self._lengths = sorted({len(beginning) for beginning in self._last_tokens})
        self._recent: tuple[int, ...] = ()
        # The grammar's or the thinking's own mask withholds them.
        self._stops = _words(sampling.stop_token_ids if grammar is None else ())
        self._num_until_stop = sampling.min_tokens

    @property
    def error(self) -> str:
        """See `TokenMask`."""
        return self._error or ("" if self._grammar is None else self._grammar.error)

    @property
    def complete(self) -> bool:
        """See `TokenMask`."""
        return self._grammar is not None and self._grammar.complete

    @property
    def free(self) -> bool:
        """See `TokenMask`."""
        if self._allowed is not None or (self._grammar is not None and not self._grammar.free):
            return False
        return not self._banned() and self._num_until_stop <= 0

    def take(self, token_id: int) -> None:
        """See `TokenMask`."""
        self._num_until_stop -= 1
        longest = self._lengths[-1] if self._lengths else 0
        if longest:
            self._recent = (*self._recent, token_id)[-longest:]
        if self._grammar is not None:
            self._grammar.take(token_id)

    def allows(self, token_id: int) -> bool:
        """See `TokenMask`. What the rules leave is known by a mask alone."""
        return False

    def fill(self, bits: Bits) -> None:
        """See `TokenMask`."""
        if self._grammar is None or self._grammar.free:
            bits.fill(-1)
        else:
            self._grammar.fill(bits)
        if self._allowed is not None:
            index, words = self._allowed
            kept = bits[index] & words
            bits.fill(0)
            bits[index] = kept
        for last_tokens in self._banned():
            _clear(bits, last_tokens)
        if self._num_until_stop > 0:
            _clear(bits, self._stops)
        if not bits.any():
            self._error = _NOTHING_LEFT

    def forced(self) -> tuple[list[int], bool]:
        """See `TokenMask`. The rules may ban what the grammar forces."""
        return [], False

    def after(self, token_ids: list[int]) -> TokenMask:
        """See `TokenMask`."""
        raise AssertionError("rules of tokens force none")

    def _banned(self) -> list[_Words]:
        """Last tokens of the words whose other tokens are the latest ones."""
        recent = self._recent
        beginnings = [recent[len(recent) - length :] for length in self._lengths if length <= len(recent)]
        return [self._last_tokens[each] for each in beginnings if each in self._last_tokens]


_Words = tuple[npt.NDArray[np.intp], Bits]
"""Words of a mask, each once, and the bits of some tokens in them."""


def _by_beginning(bad_words: Iterable[tuple[int, ...]]) -> Mapping[tuple[int, ...], _Words]:
    """The last tokens of words by the tokens before them."""
    last_tokens: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for *beginning, last in bad_words:
        last_tokens[tuple(beginning)].append(last)
    return {beginning: _words(tokens) for beginning, tokens in last_tokens.items()}


def _words(token_ids: Iterable[int]) -> _Words:
    ids = np.fromiter(token_ids, np.int64)
    index, place = np.unique(ids // 32, return_inverse=True)
    words = np.zeros(len(index), np.uint32)
    np.bitwise_or.at(words, place, np.uint32(1) << (ids % 32).astype(np.uint32))
    return index.astype(np.intp), words.view(np.int32)


def _words_of(mask: bytes) -> _Words:
    """The words of a `token_mask`."""
    words = np.frombuffer(mask, "<i4").astype(np.int32)
    index = np.flatnonzero(words)
    return index, words[index]


def _clear(bits: Bits, tokens: _Words) -> None:
    index, words = tokens
    bits[index] &= ~words

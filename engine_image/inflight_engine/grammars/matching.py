"""A request's place in its grammar: the tokens that it may sample next, and the end of its text."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from inflight_engine.grammars.compiled import LOOK, Compiled, reason
from inflight_engine.grammars.thinking import ThinkingPlace
from inflight_engine.request import SamplingParams

_QUICK = 0.001
"""CPU seconds of a mask that are nothing out of the common."""

_MAX_SLOW = 0.25
"""CPU seconds beyond these that one answer may take from the steps of all."""

_TAKES_TOO_LONG = "the masks of the grammar take too much time"

_LEAST_FORCED = 2
"""Fewer forced tokens are sampled one by one: to go on with a chunk costs as much as a step where one is in flight."""

_MOST_FORCED = 256
"""Maximum number of forced tokens at once: more of them would take time in each step in which there is no room."""

Bits = npt.NDArray[np.int32]
"""Tokens of a vocabulary as bits, int32 [ceil(size / 32)]: token i is bit i % 32 of word i // 32."""

_BITS = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32)).view(np.int32)
"""int32 [32]: the bit of each token of a word."""

_LEAST_RENEWED = 16
"""Tokens for which new states have to do: they take milliseconds, in which all steps wait."""

_TAKES_TOO_MUCH = "the text so far takes too many states of the grammar"

_TAKEN_BY_NO_GRAMMAR = "the grammar does not allow the tokens that the answer has"


class Matching:
    """Follows the tokens of one answer.

    A token that ends the request (`stop_token_ids`) is withheld until `min_tokens` and while the model thinks before a
    grammar, and an end-of-sequence token that does not end the request always; unless nothing else is allowed, as where
    the thinking has to end with it.

    Args:
        compiled: the grammar; None: there is none.
        sampling: with a grammar, or with a bound of its thinking.
        eos_token_ids: allowed where the text may end.

    Attributes:
        error: why no token can follow; empty: one can.
    """

    def __init__(self, compiled: Compiled | None, sampling: SamplingParams, eos_token_ids: Iterable[int]) -> None:
        self.error = ""
        self._slow = 0.0
        """Seconds that masks took beyond `_QUICK` each, and new compilations."""
        # Not the grammar itself, which stays compiled while somebody has it: a slot has this beyond the answer's end.
        self._anew = None if compiled is None else compiled.anew
        self._compile_seconds = 0.0 if compiled is None else compiled.seconds
        self._states = None if compiled is None else compiled.states()
        self._matcher = None if self._states is None else self._states.matcher()
        self._until_look = LOOK
        self._renewed = -_LEAST_RENEWED
        """Number of tokens from the start of the grammar when it went on with states of its own."""
        self._consumed: list[int] = []
        """Tokens from the start of the grammar."""
        self._fits = True
        """The grammar allows the tokens so far; where not, they are those that open the thinking."""
        thinking = sampling.thinking
        self._thinking = None if thinking is None else ThinkingPlace(thinking, grammar=compiled is not None)
        self._stops = _words(sampling.stop_token_ids)
        self._unused_eos = _words(set(eos_token_ids).difference(sampling.stop_token_ids))
        self._num_until_stop = sampling.min_tokens
        self._num_taken = 0
        self._run: list[int] = []
        """Tokens each of which is the only one after those before it. They are kept until they are taken: found anew
        in the middle, the same text may have other tokens, and these would depend on how many come at once."""
        self._num_followed = 0
        """Number of these that were taken."""
        self._run_ends = False
        """Nothing can follow the run."""
        self._run_known = False
        """There is no run but that one."""
        self._ending = frozenset(sampling.stop_token_ids)
        self._ends = self._ending.union(eos_token_ids)
        # Log-probabilities are of tokens that are sampled.
        self._may_force = compiled is not None and sampling.logprobs is None

    @property
    def complete(self) -> bool:
        """Nothing can follow the text."""
        if self._thinking is not None or self._matcher is None or self.error:
            return False
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def free(self) -> bool:
        """All tokens may come next."""
        if self._matcher is not None or (self._num_until_stop > 0 and self._stops):
            return False
        return self._thinking is None or self._thinking.forced is None

    def take(self, token_id: int) -> None:
        """Go on by a token of the answer."""
        self._num_taken += 1
        self._num_until_stop -= 1
        thinking = self._thinking
        if thinking is None:
            self._consume(token_id)
            self._follow(token_id)
            return
        before_text = thinking.opens is not None
        thinking.take(token_id)
        if before_text and not thinking.inside:
            self._consume(token_id, alone=thinking.over)
        elif before_text and self._matcher is not None:
            self._matcher.reset()
            self._consumed.clear()
            self._renewed = -_LEAST_RENEWED
            self._fits = True
        if thinking.over:
            self._thinking = None

    def allows(self, token_id: int) -> bool:
        """Return whether a token is known to be one that `fill` finds, in much less time where many are; False: it may
        be nevertheless."""
        if self._matcher is None or self._thinking is not None or not self._fits or not self._run_known:
            return False
        if self._num_followed < len(self._run):
            return token_id == self._run[self._num_followed]
        if token_id in self._ends or self._until_look <= 0 or self._slow > _MAX_SLOW:
            return False
        began = time.thread_time()
        allowed = self._matcher.validate_tokens([token_id]) == 1
        self._spend(time.thread_time() - began)
        return allowed

    def fill(self, bits: Bits) -> None:
        """Set the bits of the tokens that may come next."""
        thinking = self._thinking
        forced = None if thinking is None else thinking.forced
        if forced is not None:
            _only(bits, forced)
            return
        if self._num_followed < len(self._run):
            _only(bits, self._run[self._num_followed])
            return
        opens = None if thinking is None else thinking.opens
        if thinking is not None and opens is None:
            bits.fill(-1)
            self._withhold(bits, self._unused_eos)
            if self._matcher is not None or self._num_until_stop > 0:
                self._withhold(bits, self._stops)
            return
        if self._fits:
            self._fill(bits)
        else:
            bits.fill(0)
        if opens is not None:
            bits[opens // 32] |= _BITS[opens % 32]
        self._withhold(bits, self._unused_eos)
        if self._num_until_stop > 0:
            self._withhold(bits, self._stops)

    def forced(self) -> tuple[list[int], bool]:
        """Return tokens each of which is the only one after those before it, where that is known, and whether nothing
        can follow them. None of them is of `stop_token_ids`."""
        left = len(self._run) - self._num_followed
        if not self._may_force or left < (1 if self._run_ends else _LEAST_FORCED):
            return [], False
        found = self._run[self._num_followed : self._num_followed + _MOST_FORCED]
        run = list(takewhile(lambda token_id: token_id not in self._ending, found))
        ends = self._run_ends and len(run) == left
        return (run, ends) if ends or len(run) >= _LEAST_FORCED else ([], False)

    def after(self, token_ids: list[int]) -> Matching:
        """Return the place after these tokens of the answer, which begin with those that were taken. Only after
        `forced` found some."""
        assert self._matcher is not None
        assert self._thinking is None
        place = copy.copy(self)
        place._matcher = self._matcher.deep_copy()
        place._consumed = [*self._consumed]
        for token_id in token_ids[self._num_taken :]:
            place.take(token_id)
        return place

    def _consume(self, token_id: int, *, alone: bool = True) -> None:
        """Go on in the grammar. `alone`: no thinking opens with these tokens."""
        if self._matcher is None or self.error:
            return
        if self._fits:
            self._fits = self._consumes(token_id, alone)
            if not self._fits and self._renew():  # states that are full allow nothing
                self._fits = self._consumes(token_id, alone)
        if self._fits:
            self._consumed.append(token_id)
        elif alone and not self.error:
            self.error = reason(self._matcher) or _TAKEN_BY_NO_GRAMMAR

    def _consumes(self, token_id: int, alone: bool) -> bool:
        assert self._matcher is not None
        return self._matcher.consume_token(token_id) if alone else self._matcher.try_consume_tokens([token_id]) == 1

    def _follow(self, token_id: int) -> None:
        """Go on in the run by a token that the grammar has taken, or find the run after it."""
        matcher = self._matcher
        if self._num_followed < len(self._run) and self._run[self._num_followed] == token_id:
            self._num_followed += 1
        else:
            self._num_followed = len(self._run)
        if matcher is None or self.error or self._num_followed < len(self._run):
            return
        began = time.thread_time()
        found, self._num_followed, self._run_ends = matcher.compute_ff_tokens(), 0, False
        self._run = found
        if found:
            ahead = matcher.deep_copy()
            self._run = found[: ahead.try_consume_tokens(found)]
            self._run_ends = ahead.is_stopped() and not ahead.is_error()
        self._run_known = bool(self._run) or not found
        self._spend(time.thread_time() - began)

    def _fill(self, bits: Bits) -> None:
        self._mask(bits)
        assert self._matcher is not None
        if (self._matcher.is_error() or self._until_look <= 0) and self._renew():
            self._mask(bits)
        if not self.error and self._matcher.is_error():
            self.error = reason(self._matcher)
        elif self._slow > _MAX_SLOW:
            self.error = _TAKES_TOO_LONG
        if self.error:
            bits.fill(-1)

    def _mask(self, bits: Bits) -> None:
        assert self._matcher is not None
        began = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._spend(time.thread_time() - began)

    def _spend(self, seconds: float) -> None:
        assert self._states is not None
        self._states.spend(seconds)
        self._until_look -= seconds
        self._slow += max(0.0, seconds - _QUICK)

    def _renew(self) -> bool:
        """Go on with states that no other answer has, where those so far are full; returns False where they are not.
        An answer ends where new ones are soon full again, or take too long."""
        states, anew = self._states, self._anew
        self._until_look = LOOK
        if states is None or anew is None or not states.full:
            return False
        if self._slow + self._compile_seconds > _MAX_SLOW:
            self.error = _TAKES_TOO_LONG
            return False
        began = time.thread_time()
        states = anew()
        matcher = states.matcher()
        soon = len(self._consumed) < self._renewed + _LEAST_RENEWED
        if soon or not matcher.consume_tokens(self._consumed) or states.full:
            self.error = _TAKES_TOO_MUCH
            return False
        self._states, self._matcher, self._renewed = states, matcher, len(self._consumed)
        self._slow += time.thread_time() - began
        return True

    def _withhold(self, bits: Bits, words: Mapping[int, int]) -> None:
        before = {index: int(bits[index]) for index in words}
        changed = {index: word & words[index] for index, word in before.items() if word & ~words[index]}
        if not changed:  # as nearly always
            return
        for index, word in changed.items():
            bits[index] = word
        if not bits.any():
            for index in changed:
                bits[index] = before[index]


def _only(bits: Bits, token_id: int) -> None:
    bits.fill(0)
    bits[token_id // 32] = _BITS[token_id % 32]


def _words(token_ids: Iterable[int]) -> dict[int, int]:
    """Return the words of some tokens, each with a mask that clears their bits."""
    words: dict[int, int] = {}
    for token_id in token_ids:
        words[token_id // 32] = words.get(token_id // 32, -1) & ~int(_BITS[token_id % 32])
    return words

"""Compiles grammars for a model's vocabulary, and keeps the latest ones."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from weakref import WeakSet, WeakValueDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

LIMITS = LLParserLimits(step_lexer_fuel=100_000, max_lexer_states=20_000, verbose_errors=True)
"""Bounds of a grammar's cost: llguidance's own for the work of compiling (some 20 ms), less for a mask (some 7 ms:
steps of other requests wait for it) and for memory (0.4 kB a state). A character of a text with `maxLength` takes some
two states; an answer that needs more than there are goes on with new ones. Verbose errors have `_EXPRESSIONS`."""

MAX_EXPRESSIONS = 500_000
"""Most expressions that the lexer's states of an answer are made of, of 10 to 26 bytes each: some grammars take
thousands for a state. They are counted only after `LOOK`, and may be some more."""

MAX_ALL = 4_000_000
"""Most expressions of all states that are large together, but for what each takes at its start: some 200 MB."""

LARGE = 20_000
"""Expressions of large states: a grammar of common use has some thousands."""

LOOK = 0.02
"""CPU seconds of masks and forced tokens after which states may be nearly full: to ask takes some 0.3 ms."""

MAX_COMPILED = 16
"""Number of grammars that stay compiled though no request has them: compiling one takes some milliseconds, mostly on a
thread of its own, and each may have all its states, 13 MB."""

_EXPRESSIONS = re.compile(r'\nParser: \{[^}]*"lexer_cost": (\d+)')
"""Part of llguidance's verbose errors; it offers the number nowhere else."""


class GrammarError(ValueError):
    """The grammar cannot be compiled; the message is llguidance's."""


class Share:
    """Divides `MAX_ALL` among the states of an engine that are large."""

    def __init__(self) -> None:
        self._large: WeakSet[States] = WeakSet()

    def of(self, states: States, expressions: int) -> int:
        """Return the most expressions that states may have. `expressions`: those that they have."""
        if expressions > LARGE:
            self._large.add(states)
        else:
            self._large.discard(states)
        return min(MAX_EXPRESSIONS, MAX_ALL // max(1, len(self._large)))


class States:
    """A compilation of a grammar: the lexer's states, which all its matchers share. Once they are full, none of these
    can go on.

    Args:
        start: a matcher at the start of the grammar.
        share: that of all states of the engine.
    """

    __slots__ = ("__weakref__", "_least", "_no_token", "_share", "_start", "_until_look")

    def __init__(self, start: LLMatcher, vocab_size: int, share: Share) -> None:
        self._start = start
        self._no_token = vocab_size
        self._share = share
        self._until_look = LOOK
        self._least = self.expressions or 0
        """Expressions at the start of the grammar: an answer has to have room for some more."""

    def spend(self, seconds: float) -> None:
        """Note CPU time in which they may have become more."""
        self._until_look -= seconds

    @property
    def may_be_full(self) -> bool:
        """True where it is time to ask `full`, or they were full."""
        return self._until_look <= 0

    @property
    def full(self) -> bool:
        """True if they are full, or nearly: new answers need others."""
        expressions = self.expressions
        found = expressions is None or expressions > min(
            MAX_EXPRESSIONS, max(self._share.of(self, expressions), 2 * self._least)
        )
        self._until_look = 0.0 if found else LOOK
        return found

    @property
    def expressions(self) -> int | None:
        """Number of expressions that they are made of; None: the lexer has failed."""
        matcher = self._start.deep_copy()
        matcher.compute_bitmask()
        if matcher.is_error():
            return None
        matcher.consume_token(self._no_token)
        found = _EXPRESSIONS.search(matcher.get_error())
        return int(found[1]) if found else 0

    def matcher(self) -> LLMatcher:
        """Return a new matcher at the start of the grammar."""
        return self._start.deep_copy()


class Compiled:
    """A grammar for a vocabulary. It stays compiled while somebody has it.

    Args:
        anew: returns new states; called at once.

    Attributes:
        anew: the same, for one answer that has found those so far full.
        seconds: CPU time of it.
    """

    __slots__ = ("__weakref__", "_states", "anew", "seconds")

    def __init__(self, anew: Callable[[], States]) -> None:
        self.anew = anew
        began = time.thread_time()
        self._states = anew()
        self.seconds = time.thread_time() - began

    def states(self) -> States:
        """Return the states that answers share from their start."""
        if self._states.may_be_full and self._states.full:
            self._states = self.anew()
        return self._states


def reason(matcher: LLMatcher) -> str:
    """Return why a matcher cannot go on; empty: it can."""
    return matcher.get_error().partition("\n<")[0]


class Grammars:
    """Grammars by their text. Threads may share it.

    Args:
        load: makes the model's vocabulary: some tenths of a second, in which no other thread runs Python.
    """

    def __init__(self, load: Callable[[], LLTokenizer]) -> None:
        self._load = load
        self._vocabulary: LLTokenizer | None = None
        self._share = Share()
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._compiled: WeakValueDictionary[str, Compiled] = WeakValueDictionary()
        self._latest: OrderedDict[str, Compiled] = OrderedDict()

    @property
    def vocabulary(self) -> LLTokenizer:
        """The model's vocabulary; loads it where that is not done yet."""
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = self._load()
            return self._vocabulary

    def compiled(self, text: str) -> Compiled:
        """Return a grammar; compiles it where that is not done yet.

        Raises:
            GrammarError: it cannot be compiled.
        """
        with self._lock:
            compiled = self._compiled.get(text)
        if compiled is None:
            compiled = Compiled(partial(self._compile, text))
        with self._lock:
            self._compiled[text] = self._latest[text] = compiled
            self._latest.move_to_end(text)
            if len(self._latest) > MAX_COMPILED:
                self._latest.popitem(last=False)
        return compiled

    def _compile(self, text: str) -> States:
        vocabulary = self.vocabulary
        start = LLMatcher(vocabulary, text, log_level=0, limits=LIMITS)
        if start.is_error():
            raise GrammarError(reason(start))
        return States(start, vocabulary.vocab_size, self._share)

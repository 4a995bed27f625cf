"""Compiles grammars for a model's vocabulary, and keeps the latest ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakValueDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

LIMITS = LLParserLimits(step_lexer_fuel=100_000, max_lexer_states=50_000, verbose_errors=False)
"""Bounds of a grammar's cost: llguidance's own for the work of compiling (some 20 ms), less for a mask (some 7 ms:
steps of other requests wait for it) and for memory (0.4 to 0.7 kB a state). A character of a text with `maxLength`
takes some five states, so fewer would end answers of a few hundred tokens."""

MAX_COMPILED = 16
"""Number of grammars that stay compiled though no request has them: compiling one takes some milliseconds, mostly on a
thread of its own, and each may have all its states, 30 MB."""


class GrammarError(ValueError):
    """The grammar cannot be compiled; the message is llguidance's."""


class Compiled:
    """A grammar for a vocabulary. It stays compiled while somebody has it."""

    __slots__ = ("__weakref__", "_start")

    def __init__(self, start: LLMatcher) -> None:
        self._start = start

    @property
    def spent(self) -> bool:
        """True if an answer has filled the lexer's states, which all matchers share: none can go on."""
        matcher = self._start.deep_copy()
        matcher.compute_bitmask()
        return matcher.is_error()

    def matcher(self) -> LLMatcher:
        """Return a new matcher at the start of the grammar."""
        return self._start.deep_copy()


class Grammars:
    """Grammars by their text. Threads may share it.

    Args:
        load: makes the model's vocabulary: some tenths of a second, in which no other thread runs Python.
    """

    def __init__(self, load: Callable[[], LLTokenizer]) -> None:
        self._load = load
        self._vocabulary: LLTokenizer | None = None
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
        """Return a grammar; compiles it where that is not done yet, or where it is spent.

        Raises:
            GrammarError: it cannot be compiled.
        """
        with self._lock:
            compiled = self._compiled.get(text)
        if compiled is None or compiled.spent:
            compiled = self._compile(text)
        with self._lock:
            self._compiled[text] = self._latest[text] = compiled
            self._latest.move_to_end(text)
            if len(self._latest) > MAX_COMPILED:
                self._latest.popitem(last=False)
        return compiled

    def _compile(self, text: str) -> Compiled:
        start = LLMatcher(self.vocabulary, text, log_level=0, limits=LIMITS)
        if start.is_error():
            raise GrammarError(start.get_error())
        return Compiled(start)

"""Compiles grammars for a model's vocabulary, and keeps the latest ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""Bounds of a grammar's cost: llguidance's own for the work of compiling (some 20 ms) and of a mask (some 15 ms), less
memory (up to 2 kB a state)."""

MAX_COMPILED = 128
"""Number of grammars that stay compiled."""


class GrammarError(ValueError):
    """The grammar cannot be compiled; the message is llguidance's."""


class Grammars:
    """Grammars by their text. Threads may share it.

    Args:
        load: makes the model's vocabulary, when the first grammar needs it: some tenths of a second, in which no other
            thread runs Python.
    """

    def __init__(self, load: Callable[[], LLTokenizer]) -> None:
        self._load = load
        self._vocabulary: LLTokenizer | None = None
        self._loading = threading.Lock()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    @property
    def vocabulary(self) -> LLTokenizer:
        """The model's vocabulary; loads it where that is not done yet."""
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = self._load()
            return self._vocabulary

    def matcher(self, text: str) -> LLMatcher:
        """Return a new matcher at the start of a grammar's text; compiles the grammar where that is not done yet.

        Raises:
            GrammarError: it cannot be compiled.
        """
        with self._lock:
            compiled = self._compiled.get(text)
            if compiled is not None:
                self._compiled.move_to_end(text)
        if compiled is None:
            compiled = self._compile(text)
            with self._lock:
                self._compiled[text] = compiled
                if len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
        return compiled.deep_copy()

    def _compile(self, text: str) -> LLMatcher:
        compiled = LLMatcher(self.vocabulary, text, log_level=0, limits=LIMITS)
        if compiled.is_error():
            raise GrammarError(compiled.get_error())
        return compiled

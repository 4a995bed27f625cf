"""Text that arrives in pieces, read by generators that yield where they need more of it."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from re import Pattern
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

_SPACE = re.compile(r"\s*")

Reading: TypeAlias = Generator[None, None, _T]
"""A generator that yields when it needs more text, and returns what it read."""


class Mismatch(Exception):
    """The text is not of the format."""


class Source:
    """The unread text.

    Attributes:
        text: what is kept, read characters before `at`.
        ended: no more text arrives.
        short: the last reading failed because the text ended.
    """

    __slots__ = ("_num_dropped", "at", "ended", "short", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = self._num_dropped = 0
        self.ended = self.short = False

    @property
    def num_read(self) -> int:
        """Characters that were read, from the beginning."""
        return self._num_dropped + self.at

    def push(self, piece: str) -> None:
        self.text += piece

    def forget(self) -> None:
        """Read characters are not needed: `at` becomes less where they are dropped. Dropping costs no more time than
        reading did, however much is unread."""
        if 2 * self.at >= len(self.text):
            self._num_dropped += self.at
            self.text, self.at = self.text[self.at :], 0

    def peek(self) -> Reading[str]:
        """The next character; empty at the end."""
        while self.at == len(self.text) and not self.ended:
            yield
        self.short = self.at == len(self.text)
        return self.text[self.at : self.at + 1]

    def next_is(self, literal: str) -> Reading[bool]:
        """The unread text begins with this."""
        while True:
            rest = self.text[self.at : self.at + len(literal)]
            if rest == literal:
                return True
            if self.ended or not literal.startswith(rest):
                self.short = literal.startswith(rest)
                return False
            yield

    def accept(self, literal: str) -> Reading[bool]:
        """Read this text, if it is next."""
        found = yield from self.next_is(literal)
        if found:
            self.at += len(literal)
        return found

    def expect(self, literal: str) -> Reading[None]:
        """Read this text.

        Raises:
            Mismatch: another text is next.
        """
        if not (yield from self.accept(literal)):
            raise Mismatch

    def matching(self, pattern: Pattern[str], most: int) -> Reading[str]:
        """Read the longest text that this pattern of single characters, repeated, matches.

        Raises:
            Mismatch: it is longer than `most`.
        """
        begin = self.at
        while True:
            found = pattern.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at - begin > most:
                raise Mismatch
            if self.at < len(self.text) or self.ended:
                self.short = self.at == len(self.text)
                return self.text[begin : self.at]
            yield

    def space(self) -> Reading[None]:
        """Read white space."""
        while True:
            found = _SPACE.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text) or self.ended:
                return
            yield


def possible_start(text: str, literals: Sequence[str]) -> int:
    """Length of the longest end of `text` with which a longer one of these begins."""
    if not literals:
        return 0
    for length in range(min(len(text), max(map(len, literals)) - 1), 0, -1):
        if any(len(literal) > length and text.endswith(literal[:length]) for literal in literals):
            return length
    return 0

"""An answer's place in its reasoning, by tokens."""

from __future__ import annotations

from collections.abc import Sequence

from inflight_engine.request import Thinking


class ThinkingPlace:
    """Follows the tokens of one answer, up to the text of its grammar.

    Without a grammar reasoning may begin anywhere, and several times. Before a grammar it begins with the answer, or
    not at all.

    Args:
        grammar: one follows.

    Attributes:
        inside: the next token belongs to the reasoning, or to the mark that ends it.
        over: the grammar holds from here on.
    """

    def __init__(self, thinking: Thinking, *, grammar: bool) -> None:
        self.inside = thinking.begun
        self.over = False
        self._thinking = thinking
        self._grammar = grammar
        self._recent: tuple[int, ...] = ()
        """The latest tokens since the latest mark, as many as a mark has at most."""
        self._most = max(len(thinking.open), len(thinking.close))
        self._left = thinking.budget
        self._then = 0
        """How many tokens of `then` are there, and one more; 0: they do not follow yet."""

    @property
    def opens(self) -> int | None:
        """The token with which reasoning begins, or goes on to begin; None: it does not begin here."""
        if self.inside or self._then or not self._grammar:
            return None
        return self._thinking.open[len(self._recent)]

    @property
    def forced(self) -> int | None:
        """The only token that may be next; None: others may be."""
        if self._then:
            return self._thinking.then[self._then - 1]
        if self.inside and self._left is not None and self._left <= 0:
            return self._thinking.close[_overlap(self._recent, self._thinking.close)]
        return None

    def take(self, token_id: int) -> None:
        """Go on by a token; not once it is over."""
        thinking = self._thinking
        if self._then:
            self._then += 1
            self.over = self._then > len(thinking.then)
            return
        self._recent = (*self._recent, token_id)[-self._most :]
        if self.inside:
            if self._left is not None:
                self._left -= 1
            if self._recent[-len(thinking.close) :] == thinking.close:
                self.inside, self._recent = False, ()
                if self._left is not None:
                    self._left += len(thinking.close)
                self._then = 1 if self._grammar and thinking.then else 0
                self.over = self._grammar and not thinking.then
        elif self._recent[-len(thinking.open) :] == thinking.open:
            self.inside, self._recent = True, ()
        elif self._grammar:
            self.over = self._recent != thinking.open[: len(self._recent)]


def reasoning_tokens(token_ids: Sequence[int], thinking: Thinking) -> int:
    """Count the tokens of an answer inside of its reasoning, without its marks."""
    inside, at, count = thinking.begun, 0, 0
    while True:
        mark = thinking.close if inside else thinking.open
        end = _find(token_ids, mark, at)
        if inside:
            count += (len(token_ids) if end < 0 else end) - at
        if end < 0:
            return count
        inside, at = not inside, end + len(mark)


def _find(token_ids: Sequence[int], mark: tuple[int, ...], start: int) -> int:
    """Index of the first such tokens from `start` on, or -1."""
    while True:
        try:
            start = token_ids.index(mark[0], start)
        except ValueError:
            return -1
        if tuple(token_ids[start : start + len(mark)]) == mark:
            return start
        start += 1


def _overlap(recent: tuple[int, ...], mark: tuple[int, ...]) -> int:
    """Length of the longest end of `recent` with which a longer `mark` begins."""
    longest = min(len(recent), len(mark) - 1)
    return next(n for n in range(longest, -1, -1) if recent[len(recent) - n :] == mark[:n])

"""The tokens of the requests that decode: a row for each step, a column for each slot."""

from __future__ import annotations

import sys
from collections import deque
from typing import Protocol

import numpy as np

from inflight_engine.request import NO_TOKENS, TokenIds
from inflight_engine.scheduling.plan import Slots

PAGE_ROWS = 256
"""Steps whose tokens are in one page. A page is dropped when no request that joined during it is left."""

Columns = Slots | slice


class TokenRows(Protocol):
    """Rows are numbered by the clock of the decode group.

    Attributes:
        end: rows from here on need another `turn` first.
    """

    end: int

    def turn(self, oldest: int) -> None:
        """Make room for more rows. Those before `oldest` are not asked for any more."""
        ...

    def begin(self, clock: int) -> None:
        """`fill` is of this row from now on."""
        ...

    def fill(self, columns: Columns, token_ids: TokenIds) -> None:
        """The tokens of the row that was begun last: int32, one for each column."""
        ...

    def fill_many(self, clock: int, count: int, columns: Columns, token_id: int) -> int:
        """As many times `begin` and `fill`, `clock` the first, all with the same token, but not beyond `end`; returns
        how many."""
        ...

    def last(self, slot: int) -> int:
        """A slot's token in the row that was begun last."""
        ...

    def column(self, slot: int, begin: int, end: int) -> TokenIds:
        """int32 [end - begin]: a slot's tokens in these rows."""
        ...


class TokenPages:
    """All tokens, in pages of `PAGE_ROWS` rows."""

    def __init__(self, num_slots: int) -> None:
        self.end = 0
        self._begin = 0
        self._num_slots = num_slots
        self._pages: deque[TokenIds] = deque()
        """[PAGE_ROWS, num_slots] each, of the clocks from _begin to before `end`."""
        self._row = NO_TOKENS

    def __len__(self) -> int:
        """Pages."""
        return len(self._pages)

    def turn(self, oldest: int) -> None:
        while self._pages and self._begin + PAGE_ROWS <= oldest:
            self._pages.popleft()
            self._begin += PAGE_ROWS
        self._pages.append(np.empty((PAGE_ROWS, self._num_slots), np.int32))
        self.end += PAGE_ROWS

    def begin(self, clock: int) -> None:
        self._row = self._pages[-1][clock % PAGE_ROWS]

    def fill(self, columns: Columns, token_ids: TokenIds) -> None:
        self._row[columns] = token_ids

    def fill_many(self, clock: int, count: int, columns: Columns, token_id: int) -> int:
        rows = min(count, self.end - clock)
        first = clock % PAGE_ROWS
        page = self._pages[-1]
        page[first : first + rows, columns] = token_id
        self._row = page[first + rows - 1]
        return rows

    def last(self, slot: int) -> int:
        return int(self._row[slot])

    def column(self, slot: int, begin: int, end: int) -> TokenIds:
        begin, end = begin - self._begin, end - self._begin
        parts = [NO_TOKENS]
        for page in range(begin // PAGE_ROWS, -(-end // PAGE_ROWS)):
            first = page * PAGE_ROWS
            parts.append(self._pages[page][max(0, begin - first) : end - first, slot])
        return np.concatenate(parts)


class NoTokens:
    """Only how many there are: every token is 0. For a simulation that asks when, not what."""

    def __init__(self, longest: int) -> None:
        """`longest`: most rows of a column."""
        self.end = sys.maxsize
        self._zeros: TokenIds = np.zeros(longest, np.int32)
        self._zeros.flags.writeable = False

    def turn(self, oldest: int) -> None: ...

    def begin(self, clock: int) -> None: ...

    def fill(self, columns: Columns, token_ids: TokenIds) -> None: ...

    def fill_many(self, clock: int, count: int, columns: Columns, token_id: int) -> int:
        return count

    def last(self, slot: int) -> int:
        return 0

    def column(self, slot: int, begin: int, end: int) -> TokenIds:
        return self._zeros[: end - begin]

"""The requests that decode in every step, advanced together: nothing is looked at one by one.

In steady decode each member's length grows by one in each step, so everything that will happen to it is known when it
joins: a member joined with `n` tokens at clock `c` has `base + clock` tokens from then on, with base = n - c. When its
table must grow and when it reaches its length are entries in two calendars keyed by the clock; the tokens of a step are
one row of a page, and a member's output is a slice of its column over the pages since it joined. So all but the tokens
themselves is known before a step is computed: the clock may be one step ahead of the rows that are filled.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from inflight_engine.request import NO_TOKENS, TokenIds
from inflight_engine.scheduling.plan import BlockGrowth, BlockIds, Slots
from inflight_engine.scheduling.slots import SlotTable

_PAGE_ROWS = 256
"""Steps whose tokens are in one page. A page goes when nobody who joined during it is left."""


class _Phase:
    """Members whose tables grow at the same clock modulo the block size; the arrays are made anew after a change.

    Attributes:
        slots: intp [n]. indices: intp [n], where in its table each slot's next block goes.
        cells: intp [n], the same places in the flattened block table.
    """

    __slots__ = ("cells", "indices", "members", "slots", "stale")

    def __init__(self) -> None:
        self.members: dict[int, None] = {}
        self.stale = False

    def refresh(self, table: SlotTable) -> None:
        self.slots = np.fromiter(sorted(self.members), np.intp, len(self.members))
        self.indices = table.num_blocks[self.slots]
        self.cells = self.slots * table.max_blocks + self.indices
        self.stale = False


class DecodeGroup:
    """Members are slots of `table`; each gets one token in each step.

    Attributes:
        clock: steps so far, the one that is not filled yet included.
        slots: intp, the members, ascending; the same read-only array object until the group changes.
    """

    def __init__(self, table: SlotTable, block_size: int) -> None:
        num_slots = table.num_slots
        self.clock = 0
        self.slots: Slots = np.empty(0, np.intp)
        self._table = table
        self._block_size = block_size
        self._is_member = np.zeros(num_slots, np.bool_)
        self._base = np.zeros(num_slots, np.int64)
        self._num_members = self._sum_of_bases = 0
        self._first_row = np.zeros(num_slots, np.int64)
        self._finish_at = np.zeros(num_slots, np.int64)
        self._phase_of = np.zeros(num_slots, np.int64)
        self._phases = [_Phase() for _ in range(block_size)]
        self._finishing: dict[int, dict[int, None]] = {}
        self._pages: deque[TokenIds] = deque()
        """[_PAGE_ROWS, num_slots] each, of the clocks from _pages_begin to before _pages_end."""
        self._pages_begin = self._pages_end = 0
        self._columns: Slots | slice = slice(0, 0)
        self._row = NO_TOKENS
        self._row_columns: Slots | slice = self._columns
        """Where the tokens of the last step that was counted belong."""
        self._num_filled = 0
        self._stale = False

    def join(self, slot: int, num_tokens: int, length: int) -> None:
        """Take a slot in.

        Args:
            num_tokens: it has now, all but the last of them computed.
            length: of its table's request when it is complete, at least num_tokens.
        """
        table, clock = self._table, self.clock
        base = num_tokens - clock
        finish_at = length - base
        phase = (int(table.num_blocks[slot]) * self._block_size + 1 - base) % self._block_size
        self._is_member[slot] = True
        self._num_members += 1
        self._sum_of_bases += base
        self._base[slot], self._finish_at[slot], self._phase_of[slot] = base, finish_at, phase
        self._first_row[slot] = clock
        self._finishing.setdefault(finish_at, {})[slot] = None
        self._phases[phase].members[slot] = None
        self._phases[phase].stale = self._stale = True

    def leave(self, slot: int) -> TokenIds:
        """Let a slot go; returns what it generated as a member, int32, as far as that is filled."""
        generated = self._column(slot)
        finish_at, phase = int(self._finish_at[slot]), self._phases[int(self._phase_of[slot])]
        finishing = self._finishing[finish_at]
        del finishing[slot]
        if not finishing:
            del self._finishing[finish_at]
        del phase.members[slot]
        self._is_member[slot] = False
        self._num_members -= 1
        self._sum_of_bases -= int(self._base[slot])
        self._table.num_tokens[slot] = self._base[slot] + self.clock
        phase.stale = self._stale = True
        return generated

    def settle(self) -> None:
        """Make `slots` true again after members joined or left; before the next step is planned."""
        if not self._stale:
            return
        slots = np.flatnonzero(self._is_member)
        slots.flags.writeable = False
        self.slots = slots
        # A slice copies several times faster than an index array, and slots are taken lowest first: the usual case.
        dense = len(slots) > 0 and int(slots[-1]) - int(slots[0]) + 1 == len(slots)
        self._columns = slice(int(slots[0]), int(slots[-1]) + 1) if dense else slots
        self._stale = False

    @property
    def num_attended(self) -> int:
        """Known tokens of all members together: those that the next step's decodes attend to."""
        return self._sum_of_bases + self.clock * self._num_members

    def num_tokens(self, slots: Slots) -> npt.NDArray[np.int64]:
        """Known tokens of any slots, members or not."""
        tokens = self._base[slots] + self.clock
        return np.where(self._is_member[slots], tokens, self._table.num_tokens[slots])

    def growing(self) -> Slots | None:
        """Members whose last token has no block yet; None: no table grows in this step."""
        phase = self._phases[self.clock % self._block_size]
        if not phase.members:
            return None
        if phase.stale:
            phase.refresh(self._table)
        return phase.slots

    def grow(self, block_ids: BlockIds) -> BlockGrowth:
        """Give each of `growing()` one of these blocks."""
        phase = self._phases[self.clock % self._block_size]
        growth = BlockGrowth(phase.slots, phase.indices, block_ids)
        table = self._table
        table.flat_blocks[phase.cells] = block_ids
        phase.indices = phase.indices + 1  # a new array: the plan keeps the old one
        phase.cells += 1
        table.num_blocks[phase.slots] = phase.indices
        return growth

    def advance(self) -> list[int]:
        """Count a step of `slots`: each is one token longer, and `fill` will say which. Returns the members that reach
        their length with it."""
        clock = self.clock
        if clock == self._pages_end:
            self._turn_page()
        self._row = self._pages[-1][clock % _PAGE_ROWS]
        self._row_columns = self._columns
        self.clock = clock = clock + 1
        finished = self._finishing.get(clock)
        return list(finished) if finished else []

    def fill(self, token_ids: TokenIds) -> None:
        """The tokens of the step that was counted last: int32, one for each of what `slots` was then. Those of slots
        that left since are of no use to anybody, and harmless: whoever takes such a slot joins at a later clock."""
        self._row[self._row_columns] = token_ids
        self._num_filled = self.clock

    def last_token(self, slot: int) -> int:
        """What the step that was filled last brought to one of its slots, a member still or not."""
        return int(self._row[slot])

    def _column(self, slot: int) -> TokenIds:
        begin, end = int(self._first_row[slot]) - self._pages_begin, self._num_filled - self._pages_begin
        parts = [NO_TOKENS]
        for page in range(begin // _PAGE_ROWS, -(-end // _PAGE_ROWS)):
            first = page * _PAGE_ROWS
            parts.append(self._pages[page][max(0, begin - first) : end - first, slot])
        return np.concatenate(parts)

    def _turn_page(self) -> None:
        """Begin a page, and drop those whose tokens nobody needs any more."""
        oldest = int(self._first_row[self.slots].min()) if len(self.slots) else self.clock
        while self._pages and self._pages_begin + _PAGE_ROWS <= oldest:
            self._pages.popleft()
            self._pages_begin += _PAGE_ROWS
        self._pages.append(np.empty((_PAGE_ROWS, self._table.num_slots), np.int32))
        self._pages_end += _PAGE_ROWS

"""The requests that decode in every step, advanced together: nothing is looked at one by one.

In steady decode each member's length grows by one in each step, so everything that will happen to it is known when it
joins: a member joined with `n` tokens at clock `c` has `base + clock` tokens from then on, with base = n - c. When its
table must grow and when it reaches its length are entries in two calendars keyed by the clock; the tokens of a step are
one row of a page, and a member's output is a slice of its column over the pages since it joined. So all but the tokens
themselves is known before a step is computed: the clock may be one step ahead of the rows that are filled.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inflight_engine.cache.block_counter import BlockCounter
from inflight_engine.cache.block_ids import BlockIds
from inflight_engine.cache.block_pool import BlockPool
from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import BlockGrowth, Slots
from inflight_engine.scheduling.slots import SlotTable
from inflight_engine.scheduling.token_pages import Columns, TokenPages, TokenRows


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

    def __init__(self, table: SlotTable, block_size: int, tokens: TokenRows | None = None) -> None:
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
        self._tokens: TokenRows = TokenPages(num_slots) if tokens is None else tokens
        self._columns: Columns = slice(0, 0)
        self._row_columns: Columns = self._columns
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
        self._base[slot], self._finish_at[slot], self._phase_of[slot] = base, finish_at, phase
        self._first_row[slot] = clock
        self._num_members += 1
        self._sum_of_bases += base
        self._finishing.setdefault(finish_at, {})[slot] = None
        self._phases[phase].members[slot] = None
        self._phases[phase].stale = self._stale = True

    def leave(self, slot: int) -> TokenIds:
        """Let a slot go; returns what it generated as a member, int32, as far as that is filled."""
        generated = self._tokens.column(slot, int(self._first_row[slot]), self._num_filled)
        finish_at, phase = int(self._finish_at[slot]), self._phases[int(self._phase_of[slot])]
        finishing = self._finishing[finish_at]
        del finishing[slot]
        if not finishing:
            del self._finishing[finish_at]
        del phase.members[slot]
        base = int(self._base[slot])
        self._num_members -= 1
        self._sum_of_bases -= base
        self._is_member[slot] = False
        self._table.num_tokens[slot] = base + self.clock
        phase.stale = self._stale = True
        return generated

    def settle(self) -> None:
        """Make `slots` true again after members joined or left; before the next step is planned."""
        if not self._stale:
            return
        slots = self._is_member.nonzero()[0]
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
        tokens = self._tokens
        if clock == tokens.end:
            tokens.turn(self._oldest_row())
        tokens.begin(clock)
        self._row_columns = self._columns
        self.clock = clock = clock + 1
        finished = self._finishing.get(clock)
        return list(finished) if finished else []

    def steady_steps(self, num_free: int) -> int:
        """How many steps can be counted until, with the last of them, a member reaches its length, or before a table
        would grow that has no block among `num_free` left."""
        steps = min(self._finishing) - self.clock
        if self._num_members * (steps // self._block_size + 1) <= num_free:
            return steps
        for step in range(steps):
            num_free -= len(self._phases[(self.clock + step) % self._block_size].members)
            if num_free < 0:
                return step
        return steps

    def advance_many(self, count: int, pool: BlockPool | BlockCounter, token_id: int) -> list[int]:
        """So many times `growing`, `grow`, `advance` and `fill` with this token for each of `slots`, which must be
        settled: at most `steady_steps` of the pool's free blocks, and at least one."""
        self._grow_many(count, pool)
        tokens, end = self._tokens, self.clock + count
        while self.clock < end:
            if self.clock == tokens.end:
                tokens.turn(self._oldest_row())
            self.clock += tokens.fill_many(self.clock, end - self.clock, self._columns, token_id)
        self._row_columns = self._columns
        self._num_filled = end
        finished = self._finishing.get(end)
        return list(finished) if finished else []

    def _grow_many(self, count: int, pool: BlockPool | BlockCounter) -> None:
        """Give all members the blocks that they need for so many steps, in the order in which single steps would."""
        columns, size, table = self._columns, self._block_size, self._table
        had = table.num_blocks[columns]
        # A member with n tokens before the last of the steps needs blocks for all n then.
        need = (self._base[columns] + (self.clock + count + size - 2)) // size
        num_new = need - had
        total = int(num_new.sum())
        if total == 0:
            return
        block_ids = pool.allocate(total)
        if isinstance(pool, BlockPool):
            self._place_many(num_new, had, block_ids)
        table.num_blocks[columns] = need
        for step in range(min(count, size)):
            self._phases[(self.clock + step) % size].stale = True

    def _place_many(self, num_new: Slots, had: Slots, block_ids: BlockIds) -> None:
        """Write new blocks into the tables of `slots`: so many for each, behind those that it had."""
        growing = np.flatnonzero(num_new)
        slots, had, num_new = self.slots[growing], had[growing], num_new[growing]
        # One entry for each block: its place in its table, and the clock at which it is needed.
        row = np.repeat(np.arange(len(slots)), num_new)
        place = np.arange(len(block_ids)) - np.repeat(np.cumsum(num_new) - num_new, num_new) + had[row]
        needed_at = place * self._block_size + 1 - self._base[slots][row]
        order = np.argsort(needed_at, kind="stable")  # Slots are ascending already.
        cells = slots[row] * self._table.max_blocks + place
        self._table.flat_blocks[cells[order]] = block_ids

    def fill(self, token_ids: TokenIds) -> None:
        """The tokens of the step that was counted last: int32, one for each of what `slots` was then. Tokens of
        slots that left since are unused and harmless: a request that takes such a slot joins at a later clock."""
        self._tokens.fill(self._row_columns, token_ids)
        self._num_filled = self.clock

    def last_token(self, slot: int) -> int:
        """What the step that was filled last brought to one of its slots, a member still or not."""
        return self._tokens.last(slot)

    def _oldest_row(self) -> int:
        return int(self._first_row[self.slots].min()) if len(self.slots) else self.clock

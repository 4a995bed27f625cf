"""The requests that decode in every step, advanced together: plain arrays with an element for each slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inflight_engine.cache.block_pool import BlockIds
from inflight_engine.request import TokenIds
from inflight_engine.scheduling.plan import BlockGrowth, Slots
from inflight_engine.scheduling.slots import SlotTable

Counts = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


class DecodeGroup:
    """Members are slots of `table`; each gets a token in each step.

    A step is counted (`advance`), which makes members longer, before its tokens are known (`fill`): at most one step
    has been counted and not filled. So the next step can be planned while one is computed.

    Tokens lie as keys and values do, in the blocks of their slot: what a position samples has the place of that
    position in the KV cache. So 4 bytes for each token of the KV cache hold all that the members have generated.

    Attributes:
        clock: steps so far, the one that is not filled yet included.
        slots: intp, the members, ascending; the same read-only array object until the group changes.
        num_members: how many they are, also before `slots` is true again.
        num_attended: known tokens of all members together: those that the next step's decodes attend to.
    """

    def __init__(self, table: SlotTable, num_blocks: int, block_size: int) -> None:
        num_slots = table.num_slots
        self.clock = 0
        self.slots: Slots = np.empty(0, np.intp)
        self.num_attended = 0
        self._table = table
        self._block_size = block_size
        # Without dimensions: numpy converts a Python number anew in each operation.
        self._size, self._one = np.array(block_size), np.array(1)
        self._is_member = np.zeros(num_slots, np.bool_)
        self.num_members = self._num_joins = 0
        self._joined_as = np.zeros(num_slots, np.int64)
        """Place in the order of all joins."""
        self._joined_with = np.zeros(num_slots, np.int64)
        """Tokens that a member had when it joined."""
        self._room = np.full(num_slots, _NEVER)
        """Tokens for which a member has blocks; without end for other slots, as `_length`."""
        self._length = np.full(num_slots, _NEVER)
        """Tokens of a member when it is complete."""
        self._flat_sampled: TokenIds = np.empty(num_blocks * block_size + 1, np.int32)
        self._sampled = self._flat_sampled[1:].reshape(num_blocks, block_size)
        """int32 [num_blocks, block_size]: what each position has sampled. The flat array has an element ahead of it, so
        that a member with n tokens stores the next one at `_offset` + n."""
        self._offset = np.zeros(num_slots, np.int64)
        """Difference between a place in the flat array and in a member; not valid while its last token has no block."""
        self._gain = self._none = np.zeros(num_slots, np.int64)
        """Tokens that a step brings: 1 for each of `slots`."""
        self._until_end = 0
        """Tokens at least until a member reaches its length; 0 or less: not known."""
        self._columns: Slots | slice = self.slots
        """`slots` as an index; a slice where they follow each other, which is faster and the usual case."""
        self._in_flight: Counts = self._none
        """Tokens of each slot that are counted and not filled."""
        self._places_in_flight: Slots = self.slots
        self._stale = False

    def join(self, slot: int, num_tokens: int, length: int) -> None:
        """Take a slot in.

        Args:
            num_tokens: it has now, all but the last of them computed.
            length: of its table's request when it is complete, at least num_tokens.
        """
        table, size = self._table, self._block_size
        num_blocks, block = int(table.num_blocks[slot]), (num_tokens - 1) // size
        self._room[slot], self._length[slot] = num_blocks * size, length
        if block < num_blocks:
            self._offset[slot] = (int(table.blocks[slot, block]) - block) * size
        table.num_tokens[slot] = self._joined_with[slot] = num_tokens
        self._until_end = min(self._until_end, length - num_tokens)
        self._joined_as[slot] = self._num_joins
        self._num_joins += 1
        self.num_members += 1
        self.num_attended += num_tokens
        self._is_member[slot] = self._stale = True

    def leave(self, slot: int) -> TokenIds:
        """Let a slot go; returns what it generated as a member, int32, as far as that is filled."""
        num_tokens = int(self._table.num_tokens[slot])
        self._room[slot] = self._length[slot] = _NEVER
        self._until_end = 0
        self.num_members -= 1
        self.num_attended -= num_tokens
        self._is_member[slot], self._stale = False, True
        return self._sampled_at(slot, int(self._joined_with[slot]) - 1, num_tokens - 1 - int(self._in_flight[slot]))

    def settle(self) -> None:
        """Make `slots` true again after members joined or left; before the next step is planned."""
        if not self._stale:
            return
        slots = self._is_member.nonzero()[0]
        slots.flags.writeable = False
        self.slots = slots
        dense = len(slots) > 0 and int(slots[-1]) - int(slots[0]) + 1 == len(slots)
        self._columns = slice(int(slots[0]), int(slots[-1]) + 1) if dense else slots
        self._gain = self._is_member.astype(np.int64)
        self._stale = False

    def growing(self) -> Slots:
        """Members whose last token has no block yet."""
        return (self._table.num_tokens > self._room).nonzero()[0]

    def grow(self, slots: Slots, block_ids: BlockIds) -> BlockGrowth:
        """Give each of `growing()` one of these blocks."""
        table, size = self._table, self._size
        indices = table.num_blocks[slots]
        table.flat_blocks[table.first_cells[slots] + indices] = block_ids
        table.num_blocks[slots] = indices + self._one
        self._room[slots] += size
        self._offset[slots] = (block_ids.astype(np.int64) - indices) * size
        return BlockGrowth(slots, indices, block_ids)

    def advance(self) -> list[int]:
        """Count a step of `slots`, a token for each; `fill` will say which. Returns the members that reach their length
        with it, in the order in which they joined."""
        return self.count(self._gain, 1, self.num_members)

    def count(self, gain: Counts, most: int, total: int) -> list[int]:
        """Count a step that may bring a member several tokens, for which its table has room.

        Args:
            gain: int64 [num_slots]: tokens for each slot, 0 for those that are no members.
            most, total: largest and sum of them.
        """
        num_tokens = self._table.num_tokens
        self._places_in_flight = (self._offset + num_tokens)[self._columns]
        num_tokens += gain
        self._in_flight = gain
        self.num_attended += total
        self.clock += 1
        self._until_end -= most
        if self._until_end > 0:
            return []
        left = self._length - num_tokens
        full = (left <= 0).nonzero()[0]
        if len(full):
            return list(full[self._joined_as[full].argsort()].tolist())
        self._until_end = int(left.min())
        return []

    def fill(self, token_ids: TokenIds) -> None:
        """Store the tokens of the step that was counted last: int32, one for each of what `slots` was then. Tokens of
        slots that left since are unused and harmless: a request that is given their blocks stores its own later."""
        self._flat_sampled[self._places_in_flight] = token_ids
        self._in_flight = self._none

    def last_token(self, slot: int) -> int:
        """Return the token that the last filled step sampled for one of its slots, still a member or not."""
        end = int(self._table.num_tokens[slot]) - 1
        return int(self._sampled_at(slot, end - 1, end)[0])

    def _sampled_at(self, slot: int, start: int, end: int) -> TokenIds:
        """Return int32 [end - start]: what these positions of a slot have sampled."""
        size = self._block_size
        blocks = self._table.blocks[slot, start // size : -(-end // size)]
        first = start % size
        return self._sampled[blocks].reshape(-1)[first : first + end - start]

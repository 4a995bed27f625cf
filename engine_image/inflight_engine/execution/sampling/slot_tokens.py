"""Numbers for some tokens of some slots, kept flat, so that a whole batch's are read and changed at once."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from inflight_engine.scheduling.plan import Slots

Number = TypeVar("Number", np.float32, np.int32)
IntArray = npt.NDArray[np.int64]


class BatchTokens(NamedTuple, Generic[Number]):
    """Numbers of a batch's tokens: `values[i]` belongs to token `token_ids[i]` of the batch's row `rows[i]`.
    Each (row, token) is there once. `rows`, `token_ids`: int64 [n]."""

    rows: IntArray
    token_ids: IntArray
    values: npt.NDArray[Number]


class SlotTokens(Generic[Number]):
    """The entries of all slots: (slot, token id, number), each slot and token once.

    Time for each batch follows the number of entries, and memory the most that there have been; not the number of slots
    or the vocabulary.

    Args:
        max_num_seqs: number of slots.
        dtype: dtype of the numbers.
    """

    def __init__(self, max_num_seqs: int, dtype: type[Number]) -> None:
        # The entries are the first `_size` of each; the rest is room to grow, so that a step copies none of them.
        self._size = 0
        self._slots = np.empty(0, np.int64)
        self._token_ids = np.empty(0, np.int64)
        self._values: npt.NDArray[Number] = np.empty(0, dtype)
        self._of_slot = np.full(max_num_seqs, -1, np.int64)

    def __len__(self) -> int:
        return self._size

    def set(self, slot: int, token_ids: npt.NDArray[np.integer], values: npt.NDArray[Number]) -> None:
        """Give a slot its entries, in place of any it had. `token_ids` are all different."""
        self.remove(slot)
        self._extend(np.full(len(token_ids), slot), token_ids, values)

    def remove(self, slot: int) -> None:
        """Forget a slot's entries, if it has any."""
        holes = np.flatnonzero(self._slots[: self._size] == slot)
        size = self._size - len(holes)
        # The order does not matter, so only the last entries move, to where the slot's were.
        last = size + np.flatnonzero(self._slots[size : self._size] != slot)
        for array in (self._slots, self._token_ids, self._values):
            array[holes[: len(last)]] = array[last]
        self._size = size

    def select(self, slots: Slots) -> BatchTokens[Number]:
        """Return the entries of a batch whose row i is slot `slots[i]`; no slot twice. To be read before the next
        change."""
        rows = self._spread(slots, np.arange(len(slots)))
        token_ids, values = self._token_ids[: self._size], self._values[: self._size]
        found = rows >= 0
        if found.all():
            return BatchTokens(rows, token_ids, values)
        return BatchTokens(rows[found], token_ids[found], values[found])

    def add(self, slots: Slots, token_ids: npt.NDArray[np.integer], amount: int) -> None:
        """Add to the number of one token of each of some slots; a token that is not there counts as 0."""
        known = np.flatnonzero(self._spread(slots, token_ids) == self._token_ids[: self._size])
        self._values[known] += amount
        is_new = ~np.isin(slots, self._slots[known])
        if is_new.any():
            values = np.full(np.count_nonzero(is_new), amount, self._values.dtype)
            self._extend(slots[is_new], token_ids[is_new], values)

    def _spread(self, slots: Slots, numbers: npt.NDArray[np.integer]) -> IntArray:
        """Return `numbers[i]` for each entry of `slots[i]`; -1 for entries of other slots."""
        self._of_slot[slots] = numbers
        spread = self._of_slot.take(self._slots[: self._size])
        self._of_slot[slots] = -1
        return spread

    def _extend(
        self, slots: npt.NDArray[np.integer], token_ids: npt.NDArray[np.integer], values: npt.NDArray[Number]
    ) -> None:
        size = self._size + len(slots)
        if size > len(self._slots):
            room = 2 * size
            self._slots, self._token_ids = _grown(self._slots, room), _grown(self._token_ids, room)
            self._values = _grown(self._values, room)
        new = slice(self._size, size)
        self._slots[new], self._token_ids[new], self._values[new] = slots, token_ids, values
        self._size = size


def _grown(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    grown = np.empty(length, array.dtype)
    grown[: len(array)] = array
    return grown

"""A number for some tokens of some slots, kept flat, so that a whole batch's are read and changed at once."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from inflight_engine.scheduling.plan import Slots

Number = TypeVar("Number", np.float32, np.int32)
IntArray = npt.NDArray[np.int64]


class BatchTokens(NamedTuple, Generic[Number]):
    """What is known about a batch's tokens: `values[i]` belongs to token `token_ids[i]` of the batch's row `rows[i]`.
    Each (row, token) is there once. `rows`, `token_ids`: int64 [n]."""

    rows: IntArray
    token_ids: IntArray
    values: npt.NDArray[Number]


class SlotTokens(Generic[Number]):
    """The entries of all slots: (slot, token id, number), each slot and token once.

    Only what is there costs anything: memory, and time for each batch, follow the number of entries, not the number of
    slots or the vocabulary.

    Args:
        max_num_seqs: number of slots.
        dtype: of the numbers.
    """

    def __init__(self, max_num_seqs: int, dtype: type[Number]) -> None:
        self._slots = np.empty(0, np.int64)
        self._token_ids = np.empty(0, np.int64)
        self._values: npt.NDArray[Number] = np.empty(0, dtype)
        self._row_of_slot = np.full(max_num_seqs, -1, np.int64)

    def __len__(self) -> int:
        return len(self._slots)

    def set(self, slot: int, token_ids: npt.NDArray[np.integer], values: npt.NDArray[Number]) -> None:
        """Give a slot its entries, in place of any it had. `token_ids` are all different."""
        self.remove(slot)
        self._extend(np.full(len(token_ids), slot), token_ids, values)

    def remove(self, slot: int) -> None:
        """Forget a slot's entries, if it has any."""
        others = self._slots != slot
        if not others.all():
            self._slots, self._token_ids, self._values = (
                self._slots[others],
                self._token_ids[others],
                self._values[others],
            )

    def select(self, slots: Slots) -> BatchTokens[Number]:
        """The entries of a batch whose row i is slot `slots[i]`; no slot twice."""
        rows = self._rows(slots)
        found = np.flatnonzero(rows >= 0)
        return BatchTokens(rows[found], self._token_ids[found], self._values[found])

    def add(self, slots: Slots, token_ids: npt.NDArray[np.integer], amount: int) -> None:
        """Add to the number of one token of each of some slots; a token that is not there counts as 0."""
        rows = self._rows(slots)
        known = np.flatnonzero((rows >= 0) & (self._token_ids == token_ids[rows]))
        self._values[known] += amount
        is_new = np.ones(len(slots), np.bool_)
        is_new[rows[known]] = False
        if is_new.any():
            values = np.full(np.count_nonzero(is_new), amount, self._values.dtype)
            self._extend(slots[is_new], token_ids[is_new], values)

    def _rows(self, slots: Slots) -> IntArray:
        """The batch's row of each entry, -1 where its slot is not in the batch."""
        self._row_of_slot[slots] = np.arange(len(slots))
        rows = self._row_of_slot[self._slots]
        self._row_of_slot[slots] = -1
        return rows

    def _extend(
        self, slots: npt.NDArray[np.integer], token_ids: npt.NDArray[np.integer], values: npt.NDArray[Number]
    ) -> None:
        self._slots = np.concatenate([self._slots, slots])
        self._token_ids = np.concatenate([self._token_ids, token_ids])
        self._values = np.concatenate([self._values, values])

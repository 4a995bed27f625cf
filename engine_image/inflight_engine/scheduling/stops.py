"""Sampled tokens that may end a request, found for all requests at once."""

from __future__ import annotations

from collections import Counter

import numpy as np

from inflight_engine.request import TokenIds


class StopTokens:
    """The stop token ids of all running requests together.

    Nearly all requests share the model's few, so a mask over token ids that is right for the union shows in almost all
    steps that no request stops; only a token in the mask is compared with its own request's ids.
    """

    def __init__(self) -> None:
        self._users: Counter[tuple[int, ...]] = Counter()
        self._mask = np.zeros(1, np.bool_)
        self._stale = False

    def add(self, stop_token_ids: tuple[int, ...]) -> None:
        if not stop_token_ids:
            return
        self._stale |= stop_token_ids not in self._users
        self._users[stop_token_ids] += 1

    def remove(self, stop_token_ids: tuple[int, ...]) -> None:
        if not stop_token_ids:
            return
        self._users[stop_token_ids] -= 1
        if not self._users[stop_token_ids]:
            del self._users[stop_token_ids]
            self._stale = True

    def candidates(self, token_ids: TokenIds) -> list[int]:
        """Return the indices of tokens that are a stop token of some request."""
        if not self._users:
            return []
        if self._stale:
            self._rebuild()
        # The last entry is never set and stands for all larger ids.
        hits = self._mask.take(token_ids, mode="clip")
        return np.flatnonzero(hits).tolist() if np.count_nonzero(hits) else []

    def _rebuild(self) -> None:
        union = sorted({token for ids in self._users for token in ids})
        self._mask = np.zeros(union[-1] + 2 if union else 1, np.bool_)
        self._mask[union] = True
        self._stale = False

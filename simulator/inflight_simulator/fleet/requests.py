"""The requests of a fleet simulation, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inflight_simulator.arrivals import SHARED_BLOCK_TOKENS, Arrival

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """In order of arrival; a request's id is its place.

    Attributes:
        arrival_s: float64 [n], rising. prompt_tokens, output_tokens: int64 [n], at least 1 each.
        hash_ids: of each request one id for each `hash_tokens` tokens of its prompt, as in `Arrival`; empty: the file
            has none, and no prompt shares anything.
    """

    arrival_s: Floats
    prompt_tokens: Counts
    output_tokens: Counts
    hash_ids: tuple[tuple[int, ...], ...] = ()
    hash_tokens: int = SHARED_BLOCK_TOKENS

    def __len__(self) -> int:
        return len(self.arrival_s)

    @classmethod
    def of(cls, arrivals: Sequence[Arrival]) -> Requests:
        """Requests that arrive at the same time keep their order."""
        hashed = any(each.hash_ids for each in arrivals)
        return cls.sorted(
            np.array([each.arrival_s for each in arrivals], np.float64),
            np.array([each.prompt_tokens for each in arrivals], np.int64),
            np.array([each.output_tokens for each in arrivals], np.int64),
            tuple(each.hash_ids for each in arrivals) if hashed else (),
        )

    @classmethod
    def sorted(
        cls,
        arrival_s: Floats,
        prompt_tokens: Counts,
        output_tokens: Counts,
        hash_ids: tuple[tuple[int, ...], ...] = (),
        hash_tokens: int = SHARED_BLOCK_TOKENS,
    ) -> Requests:
        """Brings columns into order of arrival."""
        order = np.argsort(arrival_s, kind="stable")
        ordered_ids = tuple(hash_ids[place] for place in order.tolist()) if hash_ids else ()
        return cls(arrival_s[order], prompt_tokens[order], output_tokens[order], ordered_ids, hash_tokens)

"""The requests of a fleet simulation, as columns, and their file."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inflight_simulator.arrivals import SHARED_BLOCK_TOKENS, Arrival
from inflight_simulator.trace_files import MOST_SECONDS, MOST_TOKENS, arrivals_text, read_arrivals

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests in order of arrival; a request's id is its place.

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


_PLAIN = "arrival_s,prompt_tokens,output_tokens"


def read_requests(path: Path) -> Requests:
    """Requests of a file in any of the formats of `trace_files`, in order of arrival; at least one.

    A table of the three columns of numbers alone is read as a whole, hundreds of times faster than row by row.

    Raises:
        InputError: as `read_arrivals`.
    """
    return _read_plain(path) or Requests.of(read_arrivals(path))


def _read_plain(path: Path) -> Requests | None:
    """Reads a plain trace quickly; None: it is another format, or has a fault."""
    try:
        header, _, body = arrivals_text(path).partition("\n")
        if header.strip() != _PLAIN:
            return None
        rows = np.loadtxt(body.splitlines(), np.float64, delimiter=",", comments=None, ndmin=2)
    except (OSError, EOFError, zlib.error, ValueError):
        return None
    if rows.shape[1:] != (3,) or not len(rows):
        return None
    tokens = rows[:, 1:]
    whole = bool((tokens == np.floor(tokens)).all())
    possible = (rows[:, 0] >= 0) & (rows[:, 0] <= MOST_SECONDS) & (tokens[:, 0] >= 0) & (tokens[:, 1] >= 1)
    if not whole or not possible.all() or tokens.max() > MOST_TOKENS:
        return None
    prompt_tokens, output_tokens = tokens.astype(np.int64).T
    return Requests.sorted(rows[:, 0], np.maximum(prompt_tokens, 1), output_tokens)

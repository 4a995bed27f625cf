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


@dataclass(frozen=True, slots=True)
class Flood:
    """Requests of one tenant at a constant mean rate, whatever becomes of them.

    Attributes:
        rate: requests per second. from_s, until_s: seconds after the first arrival; None: to the last one.
    """

    tenant: str
    rate: float
    from_s: float = 0.0
    until_s: float | None = None


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
    tenants: tuple[str, ...] = ()

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
            tenants=tuple(each.tenant for each in arrivals) if any(each.tenant for each in arrivals) else (),
        )

    @classmethod
    def sorted(
        cls,
        arrival_s: Floats,
        prompt_tokens: Counts,
        output_tokens: Counts,
        hash_ids: tuple[tuple[int, ...], ...] = (),
        hash_tokens: int = SHARED_BLOCK_TOKENS,
        tenants: tuple[str, ...] = (),
    ) -> Requests:
        """Brings columns into order of arrival."""
        order = np.argsort(arrival_s, kind="stable")
        places = order.tolist()
        ordered_ids = tuple(hash_ids[place] for place in places) if hash_ids else ()
        ordered_tenants = tuple(tenants[place] for place in places) if tenants else ()
        columns = (arrival_s[order], prompt_tokens[order], output_tokens[order])
        return cls(*columns, ordered_ids, hash_tokens, ordered_tenants)

    def first(self, seconds: float) -> Requests:
        """Returns the requests of the first so many seconds; at least one."""
        count = int(np.searchsorted(self.arrival_s, self.arrival_s[0] + seconds, "right"))
        columns = (self.arrival_s[:count], self.prompt_tokens[:count], self.output_tokens[:count])
        return Requests(*columns, self.hash_ids[:count], self.hash_tokens, self.tenants[:count])

    def with_flood(self, flood: Flood, seed: int) -> Requests:
        """Returns these requests and those of a tenant that floods, whose sizes are those of requests drawn from
        these; their prompts share nothing."""
        random = np.random.default_rng((seed, zlib.crc32(flood.tenant.encode())))
        begin = float(self.arrival_s[0])
        until = float(self.arrival_s[-1]) if flood.until_s is None else begin + flood.until_s
        seconds = max(0.0, until - begin - flood.from_s)
        count = random.poisson(flood.rate * seconds)
        drawn = random.integers(len(self), size=count)
        return Requests.sorted(
            np.append(self.arrival_s, begin + flood.from_s + seconds * random.random(count)),
            np.append(self.prompt_tokens, self.prompt_tokens[drawn]),
            np.append(self.output_tokens, self.output_tokens[drawn]),
            (*self.hash_ids, *[()] * count) if self.hash_ids else (),
            self.hash_tokens,
            (*(self.tenants or [""] * len(self)), *[flood.tenant] * count),
        )


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

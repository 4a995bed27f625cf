"""Routing policies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inflight_simulator.fleet.config import Routing

_CLOSED = np.iinfo(np.int64).max
_MOST_OUTSTANDING = 1 << 24


class Router:
    """Places are pods' numbers; those that are not open get no request.

    `least-requests` and `least-work` take the smallest key, of equal ones the lowest place.
    """

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._keys: npt.NDArray[np.int64] = np.full(16, _CLOSED)
        self._open: npt.NDArray[np.bool_] = np.zeros(16, np.bool_)
        self._last = -1
        self._first, self._end = 0, 0

    @property
    def by_work(self) -> bool:
        """True if `update` needs pending tokens."""
        return self._routing == "least-work"

    def open(self, place: int) -> None:
        while place >= len(self._keys):
            self._keys = np.concatenate([self._keys, np.full(len(self._keys), _CLOSED)])
            self._open = np.concatenate([self._open, np.zeros(len(self._open), np.bool_)])
        self._open[place] = True
        self._keys[place] = 0
        self._narrow()

    def close(self, place: int) -> None:
        self._open[place] = False
        self._keys[place] = _CLOSED
        self._narrow()

    def update(self, place: int, outstanding: int, pending_tokens: int = 0) -> None:
        """Sets the current load of an open place."""
        if self._open[place]:
            self._keys[place] = pending_tokens * _MOST_OUTSTANDING + outstanding

    def choose(self) -> int:
        """
        Raises:
            LookupError: no place is open.
        """
        if self._end == 0:
            raise LookupError("no replica takes requests")
        if self._routing == "round-robin":
            places = np.flatnonzero(self._open)
            self._last = int(places[np.searchsorted(places, self._last, "right") % len(places)])
            return self._last
        return self._first + int(self._keys[self._first : self._end].argmin())

    def _narrow(self) -> None:
        places = np.flatnonzero(self._open)
        self._first, self._end = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)

"""Noise of step durations around the cost model."""

from __future__ import annotations

import numpy as np

from inflight_simulator.fleet.requests import Floats

_BUFFER = 2048


class Noise:
    """Lognormal factors, the n-th for the n-th step, independent of the order of processing.

    Args:
        sigma: standard deviation of the factors' logarithm; 0: all are 1.
        seed: of this replica's own stream.
    """

    def __init__(self, sigma: float, seed: tuple[int, ...]) -> None:
        self._sigma = sigma
        self._random = np.random.default_rng(seed)
        self._factors = np.empty(0)
        self._next = 0

    def ahead(self, count: int) -> Floats:
        """float64 [count]: the factors of the next steps, without consuming them."""
        short = self._next + count - len(self._factors)
        if short > 0:
            drawn = np.exp(self._sigma * self._random.standard_normal(max(short, _BUFFER)))
            self._factors = np.concatenate([self._factors[self._next :], drawn])
            self._next = 0
        return self._factors[self._next : self._next + count]

    def use(self, count: int) -> None:
        """Advances by a number of steps."""
        self._next += count

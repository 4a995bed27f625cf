"""Moderation of reads from engines, as network cards moderate their interrupts.

A token that comes alone costs relay, Envoy and client a wake-up each, with cold caches: twice the CPU time of one that
comes with others. While many tokens pass, the relay rests for a moment between two turns of its event loop, so that a
turn reads several, and Envoy then reads them together too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BUSY_READS_PER_S = 4000.0
"""Reads per second above which the relay rests. Below, a rest would gather fewer than two."""

REST_S = 0.0005
"""Seconds of a rest: what a token waits at most for others, half of it on average."""

FULL_TURN = 16
"""Reads of a turn that is followed by no rest: more gain little, and a process that falls behind must not rest."""

_WINDOW_S = 0.05
_WINDOW_READS = round(BUSY_READS_PER_S * _WINDOW_S)
"""The rate is measured over so many seconds, and first over so many reads."""


class Pace:
    """The pace of one event loop. Create it in the loop. Args: rest: blocks this thread for so many seconds."""

    def __init__(self, rest: Callable[[float], None] = time.sleep) -> None:
        self._rest = rest
        self._loop = asyncio.get_running_loop()
        self._busy = False
        self._turn = self._reads = 0
        self._since = self._loop.time()

    def read(self) -> None:
        """Counts a read."""
        self._reads += 1
        if self._busy:
            if not self._turn:
                # After the writes of this turn.
                self._loop.call_soon(self._end_turn)
            self._turn += 1
        elif self._reads >= _WINDOW_READS:
            self._measure()

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, 0
        if self._loop.time() >= self._since + _WINDOW_S:
            self._measure()
        if self._busy and turn < FULL_TURN:
            self._rest(REST_S)

    def _measure(self) -> None:
        now = self._loop.time()
        self._busy = self._reads > BUSY_READS_PER_S * (now - self._since)
        self._reads, self._since = 0, now

"""Heartbeats of all responses that report their progress: one timer for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflight_engine.server.answers.writer import AnswerWriter

_PERIOD = 0.5
"""Seconds between two checks of a response. A heartbeat is written if nothing was written in between, so the longest
time without a byte is twice this, 1 s."""
_ROUNDS = 10
"""In a period: not all responses that wait write at once."""


class Heartbeats:
    """
    Args:
        silent: heartbeats stop, so that a relay detects a stalled engine.
    """

    def __init__(self, silent: Callable[[], bool]) -> None:
        self._silent = silent
        self._rounds: list[dict[AnswerWriter, None]] = [{} for _ in range(_ROUNDS)]
        self._round_of: dict[AnswerWriter, int] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Number of open responses."""
        return len(self._round_of)

    def add(self, stream: AnswerWriter) -> None:
        """Adds an open response."""
        # The round that was last: the first look comes after a whole period.
        self._round_of[stream] = last = (self._next - 1) % _ROUNDS
        self._rounds[last][stream] = None
        if self._timer is None:
            self._arm()

    def remove(self, stream: AnswerWriter) -> None:
        """Removes a response that is complete or whose client disconnected."""
        del self._rounds[self._round_of.pop(stream)][stream]

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PERIOD / _ROUNDS, self._beat)

    def _beat(self) -> None:
        if not self._round_of:
            self._timer = None
            return
        self._arm()
        streams = self._rounds[self._next]
        self._next = (self._next + 1) % _ROUNDS
        if streams and not self._silent():
            for stream in [*streams]:
                stream.beat()

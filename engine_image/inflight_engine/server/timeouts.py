"""Ends requests that take too long: in the queue, or in all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflight_engine.server.errors import ApiError
from inflight_engine.server.generation import Generation


class Timeouts:
    """A request has one timer, for the limit that it reaches first. All times are seconds on the monotonic clock.

    Args:
        queue_seconds: most that a request may wait for a slot.
        request_seconds: most from its arrival to its last token, waiting included.
        end: ends a request with an error.
    """

    def __init__(
        self, queue_seconds: float, request_seconds: float, end: Callable[[Generation, ApiError], None]
    ) -> None:
        self._queue_seconds = queue_seconds
        self._request_seconds = request_seconds
        self._end = end

    def waits(self, generation: Generation, now: float) -> None:
        """It waits for a slot from now on."""
        if self._queue_seconds < self._left(generation, now):
            message = f"the request waited {self._queue_seconds:g} s for a slot, the most that --queue-timeout allows"
            self._arm(generation, self._queue_seconds, ApiError(504, message, code="queue_timeout"))
        else:
            self.runs(generation, now)

    def runs(self, generation: Generation, now: float) -> None:
        """It has a slot from now on."""
        message = (
            f"the request took {self._request_seconds:g} s from its arrival, the most that --request-timeout allows"
        )
        self._arm(generation, self._left(generation, now), ApiError(504, message, code="request_timeout"))

    def _left(self, generation: Generation, now: float) -> float:
        return generation.timings.arrived + self._request_seconds - now

    def _arm(self, generation: Generation, seconds: float, error: ApiError) -> None:
        if generation.timer is not None:
            generation.timer.cancel()
        generation.timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._end, generation, error)

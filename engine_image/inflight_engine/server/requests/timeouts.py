"""Timeouts of requests: in the queue, and for the next token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from inflight_contract.errors import ApiError
from inflight_engine.server.requests.generation import Generation
from inflight_settings.scheduling import ServiceClass, timeouts_of


class Timeouts:
    """A request has one timer, for the limit that it reaches first, and none while the engine restarts. All times are
    seconds on the monotonic clock.

    A token sets no timer: an expired timer checks the time of the latest token, and is extended by the rest.

    Args:
        queue_seconds: maximum wait for a slot.
        request_seconds: maximum time without a new token, from its entry into the queue.
        classes: their `request_timeout` stands instead.
        end: ends a request with an error.
    """

    def __init__(
        self,
        queue_seconds: float,
        request_seconds: float,
        classes: Iterable[ServiceClass],
        end: Callable[[Generation, ApiError], None],
    ) -> None:
        self._queue_seconds = queue_seconds
        self._request_seconds = timeouts_of(classes, request_seconds)
        self._end = end

    def waits(self, generation: Generation, now: float) -> None:
        """Set the timer of a request that enters the queue."""
        generation.enqueued_at = now
        if self._queue_seconds < self._allowed(generation):
            message = f"the request waited {self._queue_seconds:g} s for a slot, the most that --queue-timeout allows"
            self._arm(generation, self._queue_seconds, self._end, ApiError(504, message, code="queue_timeout"))
        else:
            self.runs(generation, now)

    def stop(self, generation: Generation) -> None:
        """Stop the timer of a request that waits for another engine process, until it `waits` in its queue."""
        if generation.timer is not None:
            generation.timer.cancel()
            generation.timer = None

    def runs(self, generation: Generation, now: float) -> None:
        """Set the timer of a request that has a slot from now on."""
        self._arm(generation, generation.progress_at + self._allowed(generation) - now, self._check)

    def _check(self, generation: Generation) -> None:
        now, allowed = asyncio.get_running_loop().time(), self._allowed(generation)
        if now < generation.progress_at + allowed:
            self.runs(generation, now)
            return
        message = (
            f"the request got no token for {allowed:g} s, the most that --request-timeout, or request_timeout of its "
            "class, allows"
        )
        self._end(generation, ApiError(504, message, code="request_timeout"))

    def _allowed(self, generation: Generation) -> float:
        return self._request_seconds[generation.request.scheduling.service_class]

    def _arm(self, generation: Generation, seconds: float, then: Callable[..., None], *arguments: ApiError) -> None:
        self.stop(generation)
        loop = asyncio.get_running_loop()
        generation.timer = loop.call_later(max(0.0, seconds), then, generation, *arguments)

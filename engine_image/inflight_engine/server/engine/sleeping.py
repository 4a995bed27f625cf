"""Sleep of the engine process: without requests for a while it gives back the memory of its KV cache."""

from __future__ import annotations

import math

from inflight_contract.errors import ApiError
from inflight_engine.messages import Sleep, Slept
from inflight_engine.server.engine.calls import EngineCalls


class Sleeping:
    """State of the engine process, awake or asleep, and the time when it should sleep.

    A request wakes it, and needs no call before: the engine reads messages in their order, so it has slept before it
    gets a request that was sent later, and does not sleep while it has one that was sent before.

    Args:
        after: seconds without requests; None: only when asked.

    Attributes:
        asleep: the engine has given back its cache, and no request was sent since.
    """

    def __init__(self, after: float | None, calls: EngineCalls) -> None:
        self.asleep = False
        self._after = math.inf if after is None else after
        self._calls = calls
        self._used_at = -math.inf
        self._asked: set[int] = set()
        """Ids of calls to sleep that were not answered, and after which no request was sent."""

    def used(self, now: float) -> None:
        """A request was sent, a step reported, or the engine should be awake, at `now` (seconds, monotonic)."""
        self.asleep, self._used_at = False, now
        self._asked.clear()

    def due(self, now: float) -> bool:
        """Return whether an engine without requests has been so for long enough."""
        return not self.asleep and not self._asked and now - self._used_at >= self._after

    def begin(self) -> None:
        """Ask the engine to sleep, without waiting for the response."""
        self._calls.tell(self._call)

    async def sleep(self) -> None:
        """Ask the engine to sleep.

        Raises:
            ApiError: 409 it has requests, 503 no engine is running, 504 it does not respond.
        """
        await self._calls.ask(self._call)
        if not self.asleep:
            raise ApiError(409, "the engine has requests; it sleeps when they have ended", code="busy")

    def answered(self, answer: Slept, now: float) -> None:
        """The engine responded at `now`. A request that was sent meanwhile wakes it."""
        if answer.call_id not in self._asked:
            return
        self._asked.remove(answer.call_id)
        if answer.stats is None:
            self.used(now)
        else:
            self.asleep = True

    def _call(self, call_id: int) -> Sleep:
        self._asked.add(call_id)
        return Sleep(call_id)

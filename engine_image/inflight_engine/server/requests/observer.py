"""Events of requests, for metrics."""

from __future__ import annotations

from typing import Protocol

from inflight_engine.messages import StepStats
from inflight_engine.server.requests.generation import Generation


class RequestObserver(Protocol):
    """Receives each event right after it, and changes nothing."""

    def rejected(self, reason: str) -> None:
        """A request was rejected; `reason`: one of `REJECTIONS`."""

    def step(self, stats: StepStats) -> None:
        """The engine reported a step."""

    def admitted(self, generation: Generation) -> None:
        """A request has its first slot."""

    def first_token(self, generation: Generation) -> None:
        """The first token of a request arrived; counted once, also where another engine process repeats it."""

    def inter_token(self, seconds: float, count: int = 1) -> None:
        """A number of requests each got a token, so long after their last one."""

    def tokens(self, count: int) -> None:
        """A step brought so many tokens."""

    def cancelled(self) -> None:
        """A request is ended from this side, before it is complete."""

    def ended(self, generation: Generation) -> None:
        """A request has ended, for any reason."""

    def engine_lost(self, stats: StepStats) -> None:
        """The engine process is gone. `stats`: its last ones; those of the next one count from zero again."""

    def resubmitted(self, count: int) -> None:
        """Another engine process is ready, and got so many requests again."""

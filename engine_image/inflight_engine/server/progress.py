"""Whether the engine makes progress: compares the time since it last did with what the step under way may take."""

from __future__ import annotations

from inflight_engine.messages import SHORT_STEP_SECONDS, LongStep

KILL_GRACE_SECONDS = 5.0
"""Between the moment when a step is overdue, and new requests should go elsewhere, and that when the engine process is
ended."""


class Progress:
    """Of one engine process that has work. All times are seconds on the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._long_step: LongStep | None = None

    def made(self, now: float) -> None:
        """The engine said something, or work came to an idle engine."""
        self._last = now

    def announced(self, step: LongStep, now: float) -> None:
        """A step begins that may take long."""
        self._last = now
        self._long_step = step

    def reported(self, step: int, now: float) -> None:
        """A step ended; -1: a report outside a step."""
        self._last = now
        if self._long_step is not None and step >= self._long_step.step:
            self._long_step = None

    def excuse(self, seconds: float) -> None:
        """This process was not running for so long, so what the engine said meanwhile was not read."""
        self._last += seconds

    def overdue(self, now: float) -> float:
        """Seconds by which the step under way has taken longer than it may; negative: it may go on."""
        allowed = SHORT_STEP_SECONDS if self._long_step is None else self._long_step.seconds
        return now - self._last - max(allowed, SHORT_STEP_SECONDS)

"""Stall detection: deadline of the engine's current step."""

from __future__ import annotations

from inflight_engine.messages import SHORT_STEP_SECONDS, LongStep

KILL_GRACE_SECONDS = 5.0
"""Between the moment when a step is overdue, and new requests should go elsewhere, and that when the engine process is
ended."""


class Progress:
    """Of one engine process that has work. All times are seconds on the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._deadline = now + SHORT_STEP_SECONDS
        self._open: list[LongStep] = []
        """Announced and not reported: where steps overlap, one may be computed while the next one waits for it."""

    def made(self, now: float) -> None:
        """The engine sent a message, or an idle engine got work."""
        self._deadline = max(self._deadline, now + SHORT_STEP_SECONDS)

    def announced(self, step: LongStep, now: float) -> None:
        """A step starts that may take long."""
        self._open.append(step)
        self._deadline = max(self._deadline, now + step.seconds)

    def reported(self, step: int, now: float) -> None:
        """A step ended; -1: a report outside a step."""
        self._deadline = now + SHORT_STEP_SECONDS
        if self._open:
            self._open = [each for each in self._open if each.step > step]
            self._deadline = max([self._deadline, *(now + each.seconds for each in self._open)])

    def excuse(self, seconds: float) -> None:
        """This process was suspended for that time, so messages of the engine were not read."""
        self._deadline += seconds

    def overdue(self, now: float) -> float:
        """Seconds by which the current step is overdue; negative: not overdue."""
        return now - self._deadline

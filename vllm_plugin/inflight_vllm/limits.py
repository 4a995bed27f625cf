"""The limits in force, as the API process sets them and the engine process takes them."""

from __future__ import annotations

from pathlib import Path

from inflight_contract.errors import ApiError
from inflight_contract.limits import changed_limits, initial_limits
from inflight_settings.limits import LimitsInForce, PartialLimits
from inflight_vllm.board import Board, Report


class LiveLimits:
    """Limits of the engine process on `board`. Args: problem: why they cannot be changed, if the API process knows."""

    def __init__(self, board: Board | None, problem: str | None) -> None:
        self._board = board
        self._latest = Report()
        if problem is None and (board is None or not board.report.number):
            problem = (
                "the scheduler is not this plugin's: --scheduler-cls=inflight_vllm.scheduler.LiveScheduler is missing,"
                " or the log has another reason"
            )
        self._problem = problem
        self._in_force = LimitsInForce(self.report.capacity)

    @property
    def report(self) -> Report:
        """The engine process's latest report; the one before it while the engine process writes."""
        found = None if self._board is None else self._board.report.read()
        self._latest = found or self._latest
        self._latest.problem = self._problem or self._latest.problem
        return self._latest

    @property
    def in_force(self) -> LimitsInForce:
        """The limits of the next step."""
        return self._in_force

    def start(self, file: Path | None) -> None:
        """Set the limits of a file, where limits can be changed."""
        report = self.report
        if report.problem is None:
            self._set(initial_limits(file, report.capacity))

    def change(self, change: PartialLimits, revision: int | None) -> None:
        """Change the limits from the next step on.

        Raises:
            ApiError: 501 they cannot be changed here; else as `changed_limits`.
        """
        self._set(changed_limits(self._in_force, self.checked().capacity, change, revision))

    def checked(self) -> Report:
        """Return the report.

        Raises:
            ApiError: 501 the limits cannot be changed; its message says why.
        """
        report = self.report
        if report.problem is not None:
            raise ApiError(501, f"limits cannot be changed: {report.problem}", code="unsupported_engine")
        return report

    def _set(self, limits: LimitsInForce) -> None:
        assert self._board is not None
        self._in_force = limits
        self._board.limits.write(limits)

"""The cost of steps, fitted in the API process to what the engine reports of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflight_engine.messages import EngineReady, StepCost, StepReport
from inflight_fit.online import MeasuredCost, OnlineFit


class StepCosts:
    """Fits the cost model to the steps of the current engine process. A fit takes some milliseconds, in a thread.

    Args:
        found: called in the event loop with each result.
    """

    def __init__(self, found: Callable[[StepCost], None]) -> None:
        self._found = found
        self._fit = OnlineFit()
        self._fitting: asyncio.Future[MeasuredCost] | None = None

    def engine_ready(self, ready: EngineReady) -> None:
        """Another engine process has loaded the model: its steps may cost something else."""
        self._fit = OnlineFit(compiles=ready.runner.device != "cpu")

    def observe(self, report: StepReport, now: float) -> None:
        """Take in a step, and start a fit when one is due. `now`: seconds, monotonic."""
        self._fit.observe(report.stats.work, report.stats.step_seconds, now)
        if self._fitting is None and self._fit.due(now):
            compute = self._fit.prepare(now)
            if compute is not None:
                fit = self._fit
                self._fitting = asyncio.get_running_loop().run_in_executor(None, compute)
                self._fitting.add_done_callback(lambda fitting: self._fitted(fit, fitting))

    def _fitted(self, fit: OnlineFit, fitting: asyncio.Future[MeasuredCost]) -> None:
        self._fitting = None
        if fit is self._fit and not fitting.cancelled():
            measured = fitting.result()
            self._found(StepCost(measured.model, measured.error, measured.steps))

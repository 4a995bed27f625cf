"""Runs the same jobs on several engines in turn and collects their times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tools.bench.engine.jobs import Job
from tools.bench.engine.process import EngineError, EngineProcess
from tools.bench.engine.report import Cell, Failure, Figure
from tools.bench.engine.rows import WARM_UPS, Row


@dataclass(slots=True)
class Contender:
    """An engine in the comparison.

    Attributes:
        engine: None: it could not be started.
        failure: why it measures nothing any more.
        runs_at_most: of each row; a slow engine is asked less often.
    """

    name: str
    engine: EngineProcess | None
    failure: Failure | None = None
    runs_at_most: int = 100
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed_rows: dict[str, Failure] = field(default_factory=dict)

    def warm_up(self) -> None:
        for job in WARM_UPS:
            self._measure(job)

    def run(self, row: Row) -> None:
        """Runs a row again, unless it failed before."""
        if row.name in self.failed_rows or len(self.seconds.get(row.name, ())) >= self.runs_at_most:
            return
        measured = self._measure(row.job)
        if isinstance(measured, Failure):
            self.failed_rows[row.name] = measured
        else:
            self.seconds.setdefault(row.name, []).append(measured)

    def cell(self, row: Row) -> Cell:
        """Tokens a second."""
        if row.name in self.failed_rows:
            return self.failed_rows[row.name]
        if row.name in self.seconds:
            return Figure.of([row.tokens_per_second(seconds) for seconds in self.seconds[row.name]])
        return None

    def _measure(self, job: Job) -> float | Failure:
        if self.failure is not None or self.engine is None:
            return self.failure or Failure("it was not started")
        try:
            return self.engine.measure(job)
        except EngineError as error:
            failure = Failure(f"{self.name}: {error}")
            if not self.engine.is_alive:
                self.failure = failure
            return failure


def run_rows(
    rows: Sequence[Row],
    ours: Sequence[Contender],
    peers: Mapping[str, Contender],
    say: Callable[[str], None],
    *,
    runs_at_most: int,
    settle_seconds: float,
) -> None:
    """Ours and the peers in turn, so that a machine that slows down or speeds up does so for all of them.

    Args:
        settle_seconds: before each run: the threads of the engine before spin for a while after its last product.
    """
    for contender in (*ours, *peers.values()):
        contender.warm_up()
    for row in rows:
        contenders = [*ours, *(peers[name] for name in row.peers if name in peers)]
        num_runs = min(row.num_runs, runs_at_most)
        say(f"{row.title}: {num_runs} runs")
        for _ in range(num_runs):
            for contender in contenders:
                time.sleep(settle_seconds)
                contender.run(row)
        for contender in contenders:
            cell = contender.cell(row)
            say(f"    {contender.name}: {cell.reason if isinstance(cell, Failure) else cell}")

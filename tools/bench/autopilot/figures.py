"""Goodput as measured by clients: of fixed settings, of a run over time, and their comparison."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tools.bench.autopilot.traffic import Answer
from tools.measure.report import percentile

NEAR = 0.02
"""Share by which a goodput may be below that of the best fixed setting and still count as reaching it."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds."""

    ttft: float
    tpot: float

    def kept(self, answer: Answer) -> bool:
        """Returns whether a request was answered whole and within both targets."""
        in_time = answer.ttft is not None and answer.ttft <= self.ttft
        return in_time and answer.whole and (answer.tpot is None or answer.tpot <= self.tpot)


def goodput(answers: Sequence[Answer], targets: Targets, start: float, end: float) -> float:
    """Requests a second of those due in [start, end) that keep both targets."""
    return sum(targets.kept(one) for one in answers if start <= one.at < end) / (end - start)


def seconds_until_near(
    answers: Sequence[Answer], targets: Targets, best: float, window: float, start: float, end: float
) -> float | None:
    """Seconds from `start` until goodput comes within `NEAR` of `best`: the begin of the first window, of those that
    begin at a whole second, whose goodput is that high. None if none before `end` is."""
    kept = sorted(one.at for one in answers if targets.kept(one))
    for second in range(math.floor(end - start - window) + 1):
        begin = start + second
        good = bisect_left(kept, begin + window) - bisect_left(kept, begin)
        if good / window >= best * (1 - NEAR):
            return float(second)
    return None


def latencies(answers: Sequence[Answer], start: float, end: float) -> tuple[float | None, float | None]:
    """p95 of TTFT and TPOT of requests due in [start, end). A request without a first token counts as endless.
    None: no values."""
    due = [one for one in answers if start <= one.at < end]
    ttft = [math.inf if one.ttft is None else one.ttft for one in due]
    tpot = [one.tpot for one in due if one.tpot is not None]
    return percentile(ttft, 0.95) if ttft else None, percentile(tpot, 0.95) if tpot else None

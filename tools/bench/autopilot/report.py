"""Results as tables and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inflight_settings.limits import Limits
from tools.bench.autopilot.figures import NEAR, Targets, goodput, latencies, seconds_until_near
from tools.bench.autopilot.pilot import Change
from tools.bench.autopilot.traffic import Answer, Slice
from tools.measure.report import table


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed setting, and its goodput with short and with long prompts."""

    limits: Limits
    short: float
    long: float

    @property
    def goodputs(self) -> tuple[float, float]:
        return self.short, self.long


@dataclass(frozen=True, slots=True)
class PilotRun:
    """The autopilot over one time with one kind of traffic.

    Attributes:
        traffic: 0 for short prompts, 1 for long ones.
        start, at_end: limits.
        answers: of the engine, also before `begin` and after `end`.
        begin, end: seconds on the answers' clock.
    """

    name: str
    traffic: int
    start: Limits
    at_end: Limits
    answers: tuple[Answer, ...]
    changes: tuple[Change, ...]
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Report:
    """Results of the benchmark.

    Attributes:
        slices: of short and of long prompts.
        window: seconds that goodput is measured over.
    """

    targets: Targets
    slices: tuple[Slice, ...]
    fixed: tuple[Fixed, ...]
    runs: tuple[PilotRun, ...]
    window: float

    def best(self, traffic: int) -> float:
        """Goodput of the best fixed setting."""
        return max(one.goodputs[traffic] for one in self.fixed)

    def whole(self, run: PilotRun) -> float:
        """Goodput of a run from its begin to its end."""
        return goodput(run.answers, self.targets, run.begin, run.end)

    def until_near(self, run: PilotRun) -> float | None:
        """Seconds until the run comes near to the best fixed setting."""
        best = self.best(run.traffic)
        return seconds_until_near(run.answers, self.targets, best, self.window, run.begin, run.end)


def text(report: Report) -> str:
    """Formats the report for a terminal."""
    lines = [
        f"Targets: TTFT {_seconds(report.targets.ttft)}, TPOT {_seconds(report.targets.tpot)}. Goodput: requests/s that"
        " keep both."
    ]
    for name, each in zip(("Short", "Long"), report.slices, strict=True):
        prompt, output = each.mean_tokens
        lines.append(f"{name} prompts: {each.rate:.1f} requests/s of {prompt:.0f} + {output:.0f} tokens.")
    lines += ["", "Fixed limits, and what the autopilot's goodput over a whole run is of theirs:", *_fixed(report)]
    lines += ["", f"The autopilot, and how long until within {NEAR:.0%} of the best fixed goodput:", *_runs(report)]
    return "\n".join(lines)


def _fixed(report: Report) -> list[str]:
    header = ["sequences", "tokens", "short", "long", *(run.name for run in report.runs)]
    rows = []
    for one in report.fixed:
        row = [str(one.limits.max_num_seqs), str(one.limits.max_num_batched_tokens)]
        row += [f"{figure:.2f}" + ("*" if figure == report.best(n) else " ") for n, figure in enumerate(one.goodputs)]
        row += [_share(report.whole(run), one.goodputs[run.traffic]) for run in report.runs]
        rows.append(row)
    return [*table([header, *rows], ">"), "* the best"]


def _runs(report: Report) -> list[str]:
    header = [
        "start",
        "from",
        "to",
        "changes",
        "until near",
        "goodput",
        "of the best",
        "last window",
        "p95 TTFT",
        "TPOT",
    ]
    rows = []
    for run in report.runs:
        best, near = report.best(run.traffic), report.until_near(run)
        last = run.end - report.window
        ttft, tpot = latencies(run.answers, last, run.end)
        rows.append(
            [
                run.name,
                pair(run.start),
                pair(run.at_end),
                str(len(run.changes)),
                "never" if near is None else f"{near:.0f} s",
                f"{report.whole(run):.2f}",
                _share(report.whole(run), best),
                _share(goodput(run.answers, report.targets, last, run.end), best),
                _seconds(ttft),
                _seconds(tpot),
            ]
        )
    return table([header, *rows], ">")


def as_json(report: Report) -> dict[str, Any]:
    """Returns all figures, without the single answers."""
    return {
        "targets": {"ttft": report.targets.ttft, "tpot": report.targets.tpot},
        "window": report.window,
        "rates": [each.rate for each in report.slices],
        "fixed": [
            {"limits": pair(one.limits), "short": one.short, "long": one.long} for one in report.fixed
        ],
        "runs": [
            {
                "start": run.name,
                "from": pair(run.start),
                "to": pair(run.at_end),
                "seconds": run.end - run.begin,
                "seconds_until_near": report.until_near(run),
                "goodput": report.whole(run),
                "best_fixed": report.best(run.traffic),
                "changes": [
                    {"at": round(one.at - run.begin, 1), "to": pair(one.limits), "why": one.text}
                    for one in run.changes
                ],
            }
            for run in report.runs
        ],
    }  # fmt: skip


def _share(figure: float, of: float) -> str:
    return f"{figure / of:.0%}" if of > 0 else "-"


def pair(limits: Limits) -> str:
    """Returns both limits, such as `32/256`."""
    return f"{limits.max_num_seqs}/{limits.max_num_batched_tokens}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if math.isinf(value):
        return "endless"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2g} s"

"""The table at the end."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.disruptions.verdict import Outcome
from tools.measure.report import table

HEADER = (
    "phase",
    "sent",
    "answered",
    "lost",
    "on killed pod",
    "retries",
    "continued",
    "longest wait",
    "longest gap",
    "seconds",
    "held",
)


def text(outcomes: Sequence[Outcome]) -> str:
    """The table, and below it lost requests by kind, problems and notes."""
    rows = [HEADER, *(_row(outcome) for outcome in outcomes)]
    lines = table(rows, "<>")
    for outcome in outcomes:
        said = [f"lost {count}: {kind}" for kind, count in outcome.lost.items()]
        said += [f"problem: {problem}" for problem in outcome.problems]
        said += [f"note: {outcome.note}"] if outcome.note else []
        lines += [f"{outcome.phase}: {line}" for line in said]
    return "\n".join(lines)


def summary(outcome: Outcome) -> str:
    """Returns a line about a phase."""
    if outcome.skipped:
        return f"skipped: {outcome.note}"
    held = "held" if not outcome.problems else f"did not hold: {'; '.join(outcome.problems)}"
    lost = sum(outcome.lost.values())
    return f"{outcome.answered} of {outcome.sent} answered, {lost} lost, longest {outcome.longest_wait:.1f} s: {held}"


def _row(outcome: Outcome) -> tuple[str, ...]:
    if outcome.skipped:
        return (outcome.phase, *["-"] * (len(HEADER) - 2), "skipped")
    return (
        outcome.phase,
        str(outcome.sent),
        str(outcome.answered),
        str(sum(outcome.lost.values())),
        str(outcome.excused),
        str(outcome.retries),
        str(outcome.continued),
        f"{outcome.longest_wait:.1f} s",
        f"{outcome.longest_gap:.1f} s",
        f"{outcome.seconds:.0f}",
        "NO" if outcome.problems else "yes",
    )

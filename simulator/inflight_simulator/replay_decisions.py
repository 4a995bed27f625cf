"""Replay of the operator's recorded decisions from their inputs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path

from inflight_operator.decide.decision import Decision
from inflight_operator.decide.status.sentences import change_text, count, sentence
from inflight_operator.reconcile.decide import decide
from inflight_operator.recording.reader import Recording, RecordingError, Round, differences
from inflight_simulator.errors import InputError

SHOWN_DECISIONS = 10
"""Decisions printed for each service without `--decisions`: the last ones."""

SHOWN_ROUNDS = 3
SHOWN_FIELDS = 8
"""Most rounds that differ, and fields of each, that are printed."""


@dataclass(slots=True)
class _Service:
    """Replay state of one service."""

    first: datetime
    last: datetime
    rounds: int = 0
    differing: int = 0
    decisions: list[tuple[datetime, Decision]] = field(default_factory=list)


def replay_files(paths: Sequence[Path], wanted: Collection[str], *, every_decision: bool) -> int:
    """Repeats the decisions of the files and prints the results; returns the exit status.

    Args:
        wanted: services, as NAMESPACE/NAME; empty takes all.
        every_decision: print them all.

    Raises:
        InputError: a file is no recording of this version, or none of the services is in them.
        OSError: a file cannot be read.
    """
    services: dict[str, _Service] = {}
    differences: list[str] = []
    for path in paths:
        _replay(path, wanted, services, differences)
    if not services:
        raise InputError(
            "there is no round of the service in the recording" if wanted else "there is no round in the recording"
        )
    for name, service in sorted(services.items()):
        print("\n".join(_service_lines(name, service, everything=every_decision)))
    rounds, differing = sum(one.rounds for one in services.values()), sum(one.differing for one in services.values())
    print(f"\n{count(rounds, 'round')} replayed: ", end="")
    if not differing:
        print("no difference")
        return 0
    print(f"{differing} with another plan than was recorded")
    print("\n".join(differences))
    if differing > SHOWN_ROUNDS:
        print(f"and {count(differing - SHOWN_ROUNDS, 'more round')}")
    return 1


def _replay(path: Path, wanted: Collection[str], services: dict[str, _Service], differences: list[str]) -> None:
    """Repeats all rounds of a file; updates the state of each service, and the differences to show."""
    try:
        recording = Recording(path)
        for one in recording.rounds(wanted):
            service = services.setdefault(one.service, _Service(one.snapshot.at, one.snapshot.at))
            service.last = one.snapshot.at
            service.rounds += 1
            service.decisions += [(one.snapshot.at, decision) for decision in one.plan.decisions]
            found = _differences(one)
            if found:
                service.differing += 1
            if found and len(differences) < SHOWN_ROUNDS:
                when = one.snapshot.at.isoformat(sep=" ", timespec="seconds")
                differences.append("\n".join([f"{path}, round {one.number}: {one.service} at {when}", *found]))
    except RecordingError as error:
        raise InputError(f"{path} {error}") from error
    if recording.cut_short:
        print(f"note: {path} stops before its end: replayed what is there", file=sys.stderr)


def _differences(recorded: Round) -> list[str]:
    """Lines about the fields of the plan that differ now; empty without a difference."""
    try:
        again = decide(recorded.snapshot, recorded.memory)
    except Exception as error:  # a decision that fails now is a difference to show, not the end of the replay
        return [f"  the decision fails now: {type(error).__name__}: {error}"]
    found = [f"  {one}" for one in islice(differences(recorded.plan, again), SHOWN_FIELDS + 1)]
    return found if len(found) <= SHOWN_FIELDS else [*found[:SHOWN_FIELDS], "  and more fields"]


def _service_lines(name: str, service: _Service, *, everything: bool) -> list[str]:
    kinds = Counter(decision.kind for _, decision in service.decisions)
    numbers = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items())) or "none"
    first, last = (moment.isoformat(sep=" ", timespec="seconds") for moment in (service.first, service.last))
    lines = [f"{name}: {count(service.rounds, 'round')} from {first} to {last}; decisions: {numbers}"]
    hidden = 0 if everything else max(0, len(service.decisions) - SHOWN_DECISIONS)
    if hidden:
        lines.append(f"  {count(hidden, 'earlier decision')} (--decisions lists all)")
    lines += [f"  {moment:%H:%M:%S}  {_said(decision)}" for moment, decision in service.decisions[hidden:]]
    return lines


def _said(decision: Decision) -> str:
    advice = "" if decision.applied else " (advice)"
    return f"{change_text(decision)}{advice}: {sentence(decision.reason)}"

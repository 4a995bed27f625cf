"""The rule by which a phase holds, and the outcome it is applied to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from e2e.disruptions.load import Traffic
from tools.load.driver import Loss

ERROR_SECONDS = 15.0
"""A request that a killed pod had must have failed this long after the kill."""


@dataclass(frozen=True)
class Blow:
    """A pod that was killed or stopped, wholly or in part.

    Attributes:
        at: seconds since the epoch.
        address: the pod's.
        whole: nothing in the pod answers any more. Until the cluster has noticed, requests are still sent there.
        within: seconds in which its requests must have failed.
    """

    at: float
    pod: str
    address: str
    whole: bool
    within: float = ERROR_SECONDS


@dataclass(frozen=True)
class Outcome:
    """A phase's row.

    Attributes:
        excused: losses on the pod that the phase killed, in time.
        continued: answers that the gateway continued at another engine.
        longest_gap: seconds between two pieces of one stream, at most.
        problems: sentences; the phase held when there is none.
        note: a sentence about what else was seen.
        skipped: the phase was not run; `note` says why.
    """

    phase: str
    sent: int = 0
    answered: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    excused: int = 0
    retries: int = 0
    longest_wait: float = 0.0
    continued: int = 0
    longest_gap: float = 0.0
    seconds: float = 0.0
    problems: tuple[str, ...] = ()
    note: str = ""
    skipped: bool = False
    losses: tuple[Loss, ...] = ()


def problem_of(loss: Loss, blow: Blow | None, routed: dict[Loss, str]) -> str | None:
    """Why `loss` breaks the rule; None when the blow excuses it.

    Excused is a request that was on the pod at the blow. Where the whole pod is dead or hangs, so is one that the
    network took there before the cluster had noticed; a connection that was refused went there too, as all others
    listen. Where a process of the pod is left, that one has to answer new requests with a 503.
    """
    if blow is None:
        return f"lost: {loss.kind}"
    if loss.ended < blow.at:
        return f"lost {blow.at - loss.ended:.1f} s before the kill: {loss.kind}"
    if loss.begun > blow.at and not blow.whole:
        return f"lost, though sent after the kill: {loss.kind}"
    pod = routed.get(loss) if loss.port is not None else blow.address
    if pod != blow.address:
        return f"lost on another pod ({pod or 'unknown'}): {loss.kind}"
    if loss.ended > blow.at + blow.within:
        return f"lost only {loss.ended - blow.at:.0f} s after the kill, {blow.within:.0f} s are allowed: {loss.kind}"
    return None


def judge(
    phase: str,
    traffic: Traffic,
    seconds: float,
    *,
    blow: Blow | None = None,
    note: str = "",
    trouble: str = "",
    continued: int = 0,
) -> Outcome:
    """The row of a phase that ran for `seconds`; `trouble` says that it could not do what it is for."""
    found = Counter(
        problem for loss in traffic.losses if (problem := problem_of(loss, blow, traffic.routed)) is not None
    )
    problems = [f"{problem} (x{times})" if times > 1 else problem for problem, times in found.items()]
    if blow and (late := sum(loss.begun > blow.at for loss in traffic.losses)):
        note = "; ".join(filter(None, (note, f"{late} of the lost requests were sent after the kill")))
    if traffic.answered + len(traffic.losses) != traffic.sent:
        problems.append(f"{traffic.sent - traffic.answered - len(traffic.losses)} requests are unaccounted for")
    if not traffic.answered:
        problems.append("no request was answered")
    if trouble:
        problems.append(trouble)
    return Outcome(
        phase=phase,
        sent=traffic.sent,
        answered=traffic.answered,
        lost=dict(Counter(loss.kind for loss in traffic.losses)),
        excused=len(traffic.losses) - found.total(),
        retries=traffic.retries,
        longest_wait=traffic.longest_wait,
        continued=continued,
        longest_gap=traffic.longest_gap,
        seconds=round(seconds, 1),
        problems=tuple(problems),
        note=note,
        losses=traffic.losses,
    )

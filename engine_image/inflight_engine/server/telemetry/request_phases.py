"""The phases of a request in its trace: queue, prefill, decode, and again after each preemption."""

from __future__ import annotations

from typing import NamedTuple

from inflight_engine.server.requests.generation import Generation

QUEUE, PREFILL, DECODE, PREEMPTED = "queue", "prefill", "decode", "preempted"


class RequestPhase(NamedTuple):
    """`began`, `ended`: seconds on the monotonic clock."""

    name: str
    began: float
    ended: float


def request_phases(generation: Generation, ended: float) -> list[RequestPhase]:
    """The phases of a generation, in order and without gaps, from its arrival to its end.

    `queue` lasts until the step in which it takes a slot, `prefill` until its first token, `decode` until its end or a
    preemption. Then it is `preempted` until it takes a slot again, and `prefill` until its next token: its tokens are
    recomputed, or copied back.

    Args:
        ended: its end where it has none of its own.
    """
    timings = generation.timings
    last = max(timings.arrived, ended if timings.finished is None else timings.finished)
    changes: list[tuple[float | None, str]] = [
        (timings.arrived, QUEUE),
        (timings.admitted, PREFILL),
        (timings.first_token, DECODE),
    ]
    for preemption in generation.preemptions:
        changes += [(preemption.began, PREEMPTED), (preemption.resumed, PREFILL), (preemption.next_token, DECODE)]
    # Stable: of changes at the same time the order above holds.
    happened = sorted(((at, name) for at, name in changes if at is not None), key=lambda change: change[0])
    phases: list[RequestPhase] = []
    for at, name in happened:
        at = min(at, last)
        if phases and phases[-1].name == name:
            continue
        if phases:
            phases[-1] = phases[-1]._replace(ended=at)
        phases.append(RequestPhase(name, at, last))
    return phases

"""Phase of each request in the API process, and times of its life. A transition that is not possible raises."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class RequestPhase(IntEnum):
    """Phase of a request between its submission and its end at the engine."""

    NEW = 0
    """Not submitted. A request that another replica has finished stays in this phase."""
    QUEUED = 1
    """Waits for its first slot in this engine process, or for the next engine process."""
    STARTING = 2
    """The engine announced that the request takes a slot in the step that runs."""
    RUNNING = 3
    """Had a slot in this engine process; it may be preempted."""
    ENDED = 4
    """Ended for its client. The engine has not reported its end."""
    GONE = 5
    """The engine reported its end, or its engine process is gone."""


_NEXT: dict[RequestPhase, tuple[RequestPhase, ...]] = {
    RequestPhase.NEW: (RequestPhase.QUEUED,),
    RequestPhase.QUEUED: (RequestPhase.STARTING, RequestPhase.RUNNING, RequestPhase.ENDED),
    RequestPhase.STARTING: (RequestPhase.QUEUED, RequestPhase.RUNNING, RequestPhase.ENDED),
    RequestPhase.RUNNING: (RequestPhase.QUEUED, RequestPhase.ENDED),
    RequestPhase.ENDED: (RequestPhase.GONE,),
    RequestPhase.GONE: (),
}
"""A request goes back to QUEUED when its engine process is lost."""


def check_move(request_id: int, present: RequestPhase, following: RequestPhase) -> None:
    """Check that one phase can follow another.

    Raises:
        AssertionError: `following` cannot follow.
    """
    if following not in _NEXT[present]:
        raise AssertionError(f"request {request_id} cannot go from {present.name} to {following.name}")


@dataclass(slots=True)
class Timings:
    """Seconds on the monotonic clock; None: has not happened."""

    arrived: float
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(slots=True)
class Preempted:
    """A preemption of a running request. Seconds on the monotonic clock; None: not yet.

    Attributes:
        began: step in which it lost its slot.
        resumed: the step in which it had a slot again.
        next_token: its first token after that.
    """

    began: float
    resumed: float | None = None
    next_token: float | None = None


MAX_PREEMPTIONS = 64
"""Maximum number of preemptions of a generation whose times are kept: the first ones and the latest."""

"""The picker's record of a request, and its phases; a transition that cannot be raises."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from inflight_gateway.link.wire import Go, Held, Refuse
from inflight_gateway.tenants.gate import Admitted
from inflight_gateway.types import APPROXIMATE, RequestView

Reply: TypeAlias = Callable[[Held | Go | Refuse], None]


class Phase(IntEnum):
    """Phase of a request."""

    HELD = 0
    """An attempt waits for a replica."""
    SENT = 1
    """The relay knows the replicas of the attempt, and says no more while the first one answers."""
    ANSWERING = 2
    """A replica answers the attempt, as the relay says."""
    AWAITING = 3
    """No attempt is under way: the relay asks for the next one, or reports the end."""
    OVER = 4


_NEXT: dict[Phase, tuple[Phase, ...]] = {
    # A relay that waits too long for the picker starts an attempt by itself.
    Phase.HELD: (Phase.SENT, Phase.ANSWERING, Phase.AWAITING, Phase.OVER),
    Phase.SENT: (Phase.ANSWERING, Phase.AWAITING, Phase.OVER),
    Phase.ANSWERING: (Phase.AWAITING, Phase.OVER),
    Phase.AWAITING: (Phase.HELD, Phase.OVER),
    Phase.OVER: (),
}


@dataclass(slots=True, eq=False)
class Request:
    """A request, over all its attempts.

    Attributes:
        relay: the stream that it came by. reply: sends to it.
        view: the newest attempt.
        key_id: id of its API key; empty at services without keys.
        allowed: addresses that another gateway allows; empty: all.
        since: when the newest attempt began to wait, here or at another picker, in seconds.
        admitted: its charge; None: not admitted yet, or refused.
        picked: first endpoint of each pick. held_s: seconds that its attempts were held.
        refusal, status: code and status of the picker's own response; status may be that of an engine's response where
            another gateway reports it.
        tokens: output tokens so far, as its relay reports about once a second.
        served: output tokens charged to its tenant's counter; None: adopted, and not known yet.
        expected_output: output tokens of all its choices, as expected when it came.
        elsewhere: the newest attempt is at an engine of the prefill set, to its end: no demand for those that answer.
        index: of the prefix cache of the replica that was picked last: `EXACT` or `APPROXIMATE`.
    """

    relay: Hashable
    reply: Reply
    view: RequestView
    key_id: str = ""
    allowed: Collection[str] = ()
    since: float = 0.0
    admitted: Admitted | None = None
    picked: list[str] = field(default_factory=list)
    held_s: float = 0.0
    refusal: str = ""
    status: int | None = None
    tokens: int = 0
    served: int | None = 0
    expected_output: int = 0
    elsewhere: bool = False
    index: str = APPROXIMATE
    phase: Phase = Phase.AWAITING

    @property
    def id(self) -> str:
        return self.view.request_id

    @property
    def attempt(self) -> int:
        """Number of the newest attempt, from 1."""
        return self.view.attempt

    def go_on_from(self, lost: Request) -> None:
        """Takes what is known of the same request from the time before its relay's stream broke."""
        self.admitted, self.picked, self.held_s = lost.admitted, lost.picked, lost.held_s
        self.tokens, self.served = lost.tokens, lost.served

    def move(self, phase: Phase) -> None:
        """Raises AssertionError where the phase cannot follow."""
        if phase not in _NEXT[self.phase]:
            raise AssertionError(f"request {self.id} cannot go from {self.phase.name} to {phase.name}")
        self.phase = phase

"""The pods of a fleet: ordered, started, drained, gone."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_simulator.fleet.meter import Meter
from inflight_simulator.fleet.replica import NEVER, Replica


@dataclass(slots=True, eq=False)
class Pod:
    """Attributes:
    number: counts from 0 in the order of creation; also the pod's place in routing.
    created_s: when it was ordered. starts_s: when it is ready, or was.
    ready: it has started.
    draining: it takes no new requests.
    ended_s: when it was gone; NEVER until then.
    meter: what its metrics count; None where nobody looks.
    deletion_cost: a smaller one goes first, where the operator sets them.
    """

    number: int
    replica: Replica
    created_s: float
    starts_s: float
    meter: Meter | None
    ready: bool = False
    draining: bool = False
    ended_s: float = NEVER
    deletion_cost: int = 0

    @property
    def name(self) -> str:
        return f"pod-{self.number}"

    @property
    def routable(self) -> bool:
        return self.ready and not self.draining


def first_to_go(pod: Pod) -> tuple[bool, float, int]:
    """Smaller goes first, as a ReplicaSet chooses without deletion costs: those not ready, then the newest."""
    return pod.ready, -pod.starts_s, -pod.number

"""The pods of a fleet: ordered, started, drained, removed."""

from __future__ import annotations

from dataclasses import dataclass

from inflight_simulator.fleet.replicas.meter import Meter
from inflight_simulator.fleet.replicas.replica import NEVER, Replica


@dataclass(slots=True, eq=False)
class Pod:
    """A simulated pod.

    Attributes:
        number: counts from 0 in the order of creation; also the pod's place in routing.
        created_s: when it was ordered. starts_s: when it is ready, or was.
        ready: it has started.
        draining: it takes no new requests.
        ended_s: when it was removed; NEVER until then.
        meter: its metrics; None if no controller reads them.
        deletion_cost: a pod with a smaller one is removed first, if the operator sets them.
        prefill: it computes prompts for others.
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
    prefill: bool = False

    @property
    def name(self) -> str:
        return f"pod-{self.number}"

    @property
    def routable(self) -> bool:
        return self.ready and not self.draining


def first_to_go(pod: Pod) -> tuple[bool, float, int]:
    """Order of removal, smallest first, as in a ReplicaSet without deletion costs: those not ready, then the newest."""
    return pod.ready, -pod.starts_s, -pod.number

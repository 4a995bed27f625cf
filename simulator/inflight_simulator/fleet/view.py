"""The scaler's view of a simulated fleet: the pods as a controller would list them, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inflight_operator.observe.metrics import Sample
from inflight_settings.limits import Limits


@dataclass(frozen=True, slots=True)
class PodState:
    """State of a pod, from its order to the end of its last request.

    Attributes:
        name: unique within a run; later pods have later numbers.
        draining: it takes no new requests and is removed after the last one.
        sample: its current /metrics; None while it starts or drains.
        kv_tokens: tokens that its KV cache holds.
        limits: limits in force.
    """

    name: str
    draining: bool
    sample: Sample | None
    kv_tokens: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class FleetView:
    """The fleet at one moment.

    Attributes:
        now: seconds on the simulation's clock, that of arrivals.
        ordered: last ordered number of replicas, without draining pods.
        min_replicas, max_replicas: the result is brought within them.
        pods: oldest first, draining ones included.
        gateway_queue: requests held back in front of the pods.
    """

    now: float
    ordered: int
    min_replicas: int
    max_replicas: int
    pods: tuple[PodState, ...]
    gateway_queue: int = 0

    @property
    def ready(self) -> tuple[PodState, ...]:
        """Pods that take requests."""
        return tuple(pod for pod in self.pods if pod.sample is not None)

    def bounded(self, replicas: int) -> int:
        """Returns the number within the bounds."""
        return min(max(replicas, self.min_replicas), self.max_replicas)


class Scaler(Protocol):
    """Decides the number of replicas."""

    @property
    def interval_s(self) -> float:
        """Seconds of simulated time between two decisions."""

    def replicas(self, view: FleetView) -> int:
        """Replicas to be ordered; the fleet brings them within its bounds."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant number of replicas."""

    count: int
    interval_s: float = float("inf")

    def replicas(self, view: FleetView) -> int:
        return self.count

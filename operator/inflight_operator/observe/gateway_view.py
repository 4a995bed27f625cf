"""Combined reports of the gateway's pods on one service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class GatewayDemand(NamedTuple):
    """Counters of one gateway pod for one service, over all classes, since that pod started.

    Attributes:
        arrived: requests that the limits of their tenants admitted.
        prompt_tokens, prompt_squares: sums over them of estimated prompt tokens, and of their squares.
        output_tokens: output tokens expected of them.
        refused: those of them that no replica could start in time.
        sent: attempts sent to engines. sent_prompt_tokens, sent_output_tokens: sums over these.
    """

    arrived: float = 0
    prompt_tokens: float = 0
    prompt_squares: float = 0
    output_tokens: float = 0
    refused: float = 0
    sent: float = 0
    sent_prompt_tokens: float = 0
    sent_output_tokens: float = 0


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """Report of one gateway pod on one service.

    Attributes:
        at: when, on the steady clock.
        held: requests that wait for a replica. held_prompt_tokens: estimated tokens of their prompts.
        oldest_held_s: seconds that the oldest of them had waited; 0 without any.
        in_flight: unfinished requests that were sent to engines.
        idle_s: seconds since the last request arrived or ended; None: none since `since`.
        since: when the stream of this pod began, on the steady clock. A pod without data on earlier requests may have
            restarted then.
        demand: its counters; None from a gateway of an earlier release.
    """

    at: float
    since: float
    held: int = 0
    held_prompt_tokens: int = 0
    oldest_held_s: float = 0.0
    in_flight: int = 0
    idle_s: float | None = None
    demand: GatewayDemand | None = None

    def idle_at(self, now: float) -> float:
        """Returns the seconds without a request until `now`, as far as reported."""
        if self.held or self.in_flight:
            return 0.0
        return now - self.since if self.idle_s is None else self.idle_s + now - self.at


@dataclass(frozen=True, slots=True)
class GatewayView:
    """The gateway as the decisions of one service see it.

    Attributes:
        pods: number of gateway pods that may have requests of the service.
        heard: number of these pods with a recent report on the service.
        held: requests that wait at the gateway for a replica. held_prompt_tokens: estimated tokens of their prompts.
        oldest_held_s: seconds that the oldest of them has waited.
        in_flight: unfinished requests that were sent to engines.
        idle_s: seconds since the last request arrived or ended, as far as reported.
        silence: why a pod is not connected, as text; empty if all are.
        demand: counters by gateway pod; empty unless all pods report them.
    """

    pods: int = 0
    heard: int = 0
    held: int = 0
    held_prompt_tokens: int = 0
    oldest_held_s: float = 0.0
    in_flight: int = 0
    idle_s: float = 0.0
    silence: str = ""
    demand: Mapping[str, GatewayDemand] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """True if all gateway pods are connected: only then no request is missed."""
        return 0 < self.pods <= self.heard

    @property
    def counts(self) -> bool:
        """True if all gateway pods report the demand at them."""
        return self.known and bool(self.demand)


def gateway_view(reports: Mapping[str, GatewayReport], pods: int, now: float, silence: str = "") -> GatewayView:
    """Returns the view from the recent reports of the connected pods.

    Args:
        reports: by pod.
        pods: number of all pods, connected or not.
        silence: why a pod is not connected.
    """
    every = reports.values()
    demand = {pod: one.demand for pod, one in reports.items() if one.demand is not None}
    return GatewayView(
        pods=pods,
        heard=len(reports),
        held=sum(one.held for one in every),
        held_prompt_tokens=sum(one.held_prompt_tokens for one in every),
        oldest_held_s=max((one.oldest_held_s + now - one.at for one in every if one.held), default=0.0),
        in_flight=sum(one.in_flight for one in every),
        idle_s=min((one.idle_at(now) for one in every), default=0.0),
        silence=silence,
        demand=demand if len(demand) == len(reports) else {},
    )

"""Combined reports of the gateway's pods on one service."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
    """

    at: float
    since: float
    held: int = 0
    held_prompt_tokens: int = 0
    oldest_held_s: float = 0.0
    in_flight: int = 0
    idle_s: float | None = None

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
    """

    pods: int = 0
    heard: int = 0
    held: int = 0
    held_prompt_tokens: int = 0
    oldest_held_s: float = 0.0
    in_flight: int = 0
    idle_s: float = 0.0
    silence: str = ""

    @property
    def known(self) -> bool:
        """True if all gateway pods are connected: only then no request is missed."""
        return 0 < self.pods <= self.heard


def gateway_view(reports: Sequence[GatewayReport], pods: int, now: float, silence: str = "") -> GatewayView:
    """Returns the view from the recent reports of the connected pods.

    Args:
        pods: number of all pods, connected or not.
        silence: why a pod is not connected.
    """
    return GatewayView(
        pods=pods,
        heard=len(reports),
        held=sum(one.held for one in reports),
        held_prompt_tokens=sum(one.held_prompt_tokens for one in reports),
        oldest_held_s=max((one.oldest_held_s + now - one.at for one in reports if one.held), default=0.0),
        in_flight=sum(one.in_flight for one in reports),
        idle_s=min((one.idle_at(now) for one in reports), default=0.0),
        silence=silence,
    )


def count(value: object) -> int:
    """Returns a count that a gateway pod sent.

    Raises:
        ValueError: the value is no count.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError(f"{value!r} is not a count")
    return value


def seconds(value: object) -> float:
    """Returns seconds that a gateway pod sent.

    Raises:
        ValueError: the value is no time span.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)

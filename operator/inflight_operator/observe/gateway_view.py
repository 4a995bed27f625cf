"""What the gateway's pods tell of one service, together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """What one gateway pod said of one service.

    Attributes:
        at: when, on the steady clock.
        held: requests that wait for a replica. held_prompt_tokens: estimated tokens of their prompts.
        oldest_held_s: seconds that the oldest of them had waited; 0 without any.
        in_flight: requests that were sent to engines and had not ended.
        idle_s: seconds since the last request came or ended; None: none since `since`.
        since: when the stream of this pod began, on the steady clock. A pod that says nothing of requests before it
            may have been restarted then.
    """

    at: float
    since: float
    held: int = 0
    held_prompt_tokens: int = 0
    oldest_held_s: float = 0.0
    in_flight: int = 0
    idle_s: float | None = None

    def idle_at(self, now: float) -> float:
        """Seconds without a request until `now`, as far as it was heard."""
        if self.held or self.in_flight:
            return 0.0
        return now - self.since if self.idle_s is None else self.idle_s + now - self.at


@dataclass(frozen=True, slots=True)
class GatewayView:
    """The gateway as the decisions of one service see it.

    Attributes:
        pods: gateway pods that may have requests of the service.
        heard: those of them that told of the service lately.
        held: requests that wait at the gateway for a replica. held_prompt_tokens: estimated tokens of their prompts.
        oldest_held_s: seconds that the oldest of them has waited.
        in_flight: requests that were sent to engines and have not ended.
        idle_s: seconds since the last request came or ended, as far as it was heard.
        silence: why a pod is not heard, in words; empty when all are.
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
        """Whether all gateway pods are heard: only then no request can be overlooked."""
        return 0 < self.pods <= self.heard


def gateway_view(reports: Sequence[GatewayReport], pods: int, now: float, silence: str = "") -> GatewayView:
    """The view from the recent reports of the pods that are heard.

    Args:
        pods: all that there are, those that are not heard included.
        silence: why one is not heard.
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
    """A count that a gateway pod sent.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError(f"{value!r} is not a count")
    return value


def seconds(value: object) -> float:
    """Seconds that a gateway pod sent.

    Raises:
        ValueError: they are none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is not a number of seconds")
    return float(value)

"""Demand at the gateway: requests that arrive there, whether engines get them or not.

Counters of each gateway pod are differenced, and the rates of all pods are added up: a service that moves from one pod
to another keeps its rate. Engines measure the size of what they were sent (tokens of a gateway are estimates), and the
gateway how that differs from what arrived. So both are used as ratios: prompts in the engines' tokens, by the tokens
that the gateway counted for the same requests, and outputs by the ratio of those expected of arrived and of sent ones.

Requests that reach engines around the gateway are what engines count beyond what the gateway sent, as the mean of
`AROUND_SECONDS`: engines are scraped every few seconds, so a shorter mean has counts of different moments in it, and a
longer one counts clients twice for as long after they have moved to the gateway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from inflight_operator.observe.gateway_view import GatewayDemand

MEAN_SECONDS = 300.0
"""Time constant of the means, in seconds."""

AROUND_SECONDS = 30.0
"""Time constant of the mean of requests around the gateway, in seconds."""

LEAST_SECONDS = 60.0
"""Seconds from which the means of requests a second are such; before, time without requests counts as well."""

MIN_REQUESTS = 10.0
"""Requests in the mean from which sizes of arrived and sent ones are compared."""


class Engines(NamedTuple):
    """Arrivals at engines a second: requests, their prompt tokens, and the squares of these."""

    requests: float = 0.0
    tokens: float = 0.0
    squares: float = 0.0


_NOTHING = Engines()


class PodCounters(NamedTuple):
    """Counters of a gateway pod when they were last read."""

    time: float
    counters: GatewayDemand


_NONE = GatewayDemand()


@dataclass(frozen=True, slots=True)
class Offered:
    """Memory of what the gateway was asked for. Bounded: a few numbers for each gateway pod.

    Attributes:
        pods: counters by pod; one that is not heard is kept for `MEAN_SECONDS`, as its counters continue.
        seconds: seconds in the means.
        gateway: decayed sums of the growth of the gateway's counters.
        engines: the same of what engines got.
        beyond: requests a second that engines got beyond those that the gateway sent; negative where they lag behind.
        unit: prompt tokens of engines for one that the gateway estimates; 1 while not known.
        latest: what arrived, a second, when counters were last read: requests, prompt tokens, and their squares.
    """

    pods: Mapping[str, PodCounters] = field(default_factory=dict)
    seconds: float = 0.0
    gateway: GatewayDemand = _NONE
    engines: Engines = _NOTHING
    beyond: float = 0.0
    unit: float = 1.0
    latest: Engines = _NOTHING

    def with_counters(
        self, counters: Mapping[str, GatewayDemand], engines: Engines, now: float, width: float
    ) -> Offered:
        """Returns the memory with counters of all gateway pods.

        Args:
            engines: what engines got in the same time.
            width: seconds since counters were last read; 0: never.
        """
        silent = {pod: one for pod, one in self.pods.items() if now - one.time <= MEAN_SECONDS}
        pods = {**silent, **{pod: PodCounters(now, one) for pod, one in counters.items()}}
        rates = _total(_rates(self.pods.get(pod), one, now) for pod, one in counters.items())
        kept, new = math.exp(-width / MEAN_SECONDS), 1 - math.exp(-width / AROUND_SECONDS)
        then = replace(
            self,
            pods=pods,
            seconds=kept * self.seconds + width,
            gateway=GatewayDemand(*(kept * was + width * rate for was, rate in zip(self.gateway, rates, strict=True))),
            engines=Engines(*(kept * was + width * rate for was, rate in zip(self.engines, engines, strict=True))),
            beyond=self.beyond + new * (engines.requests - rates.sent - self.beyond),
        )
        then = replace(then, unit=then._measured_unit())
        return replace(then, latest=then._arriving(rates))

    def outdated(self, now: float) -> bool:
        """Returns True if no gateway pod was heard for `MEAN_SECONDS`: no mean is of the recent past then."""
        return all(now - one.time > MEAN_SECONDS for one in self.pods.values())

    @property
    def around(self) -> float:
        """Requests a second that engines get around the gateway."""
        return max(0.0, self.beyond)

    @property
    def served(self) -> float:
        """Prompt tokens a second that engines got."""
        return self.engines.tokens / self.seconds if self.seconds else 0.0

    @property
    def refused(self) -> float:
        """Requests a second that the gateway refuses because no replica can start them."""
        return self.gateway.refused / max(LEAST_SECONDS, self.seconds)

    @property
    def output_ratio(self) -> float:
        """Output tokens expected of a request that arrives, by those of one that is sent; 1 while not known."""
        sums = self.gateway
        if min(sums.arrived, sums.sent) < MIN_REQUESTS or not sums.output_tokens or not sums.sent_output_tokens:
            return 1.0
        return (sums.output_tokens / sums.arrived) / (sums.sent_output_tokens / sums.sent)

    def _measured_unit(self) -> float:
        """Returns `unit` by the sums; the one before while they are of few requests, as in a service that slept."""
        sums, engines = self.gateway, self.engines
        if min(sums.sent, engines.requests) < MIN_REQUESTS or not sums.sent_prompt_tokens or not engines.tokens:
            return self.unit
        return (engines.tokens / engines.requests) / (sums.sent_prompt_tokens / sums.sent)

    def _arriving(self, rates: GatewayDemand) -> Engines:
        """Returns what arrives, in tokens of the engines, with what goes around the gateway."""
        unit, around = self.unit, self.around
        engines = self.engines
        tokens = around * engines.tokens / engines.requests if around else 0.0
        squares = around * engines.squares / engines.requests if around else 0.0
        return Engines(
            rates.arrived + around, unit * rates.prompt_tokens + tokens, unit**2 * rates.prompt_squares + squares
        )


def _rates(before: PodCounters | None, counters: GatewayDemand, now: float) -> GatewayDemand:
    """Returns the growth of a pod's counters a second; zero for a pod that was not seen before: it had no request, or
    others have seen them. A pod whose counters have fallen was restarted."""
    if before is None or now <= before.time:
        return _NONE
    anew = any(one < was for one, was in zip(counters, before.counters, strict=True))
    was = _NONE if anew else before.counters
    return GatewayDemand(*((one - then) / (now - before.time) for one, then in zip(counters, was, strict=True)))


def _total(rates: Iterable[GatewayDemand]) -> GatewayDemand:
    return GatewayDemand(*map(sum, zip(_NONE, *rates, strict=True)))

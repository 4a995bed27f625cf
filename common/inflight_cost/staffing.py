"""How many replicas a rate of requests needs, so that all but a small share begin to be answered in time.

Queueing theory with two moments. Replicas that share one queue are an M/G/n system; where the engines serve first those
that can still be in time (policy `deadline`), a request that is late costs nothing that others need, so the system is
M/G/n with impatient requests: M/M/n+D (Baccelli and Hebuterne 1981), its rates scaled by 2 / (1 + variation) for
services that are not exponential (the usual two-moment approximation, Kimura 1994). Where requests are spread without
regard to load, each replica is a system of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_SMALL = 1e-9


@dataclass(frozen=True, slots=True)
class Staffing:
    """The properties of replicas that staffing depends on.

    Attributes:
        service: seconds of a server that a request takes.
        variation: squared coefficient of variation of the work of a request.
        patience: seconds that a request may wait before its prefill begins.
        servers: servers of a replica: 1 where requests are served one after another, its slots where they are served at
            once.
        pooled: requests go to the replica with the least work; else anywhere.
        ordered: engines serve requests first that can still be in time; else first come, first served.
    """

    service: float
    variation: float
    patience: float
    servers: int = 1
    pooled: bool = True
    ordered: bool = True

    def with_service(self, service: float) -> Staffing:
        """Returns these properties with another `service`; `dataclasses.replace` takes several times as long."""
        return Staffing(service, self.variation, self.patience, self.servers, self.pooled, self.ordered)


def share_late(replicas: int, rate: float, staffing: Staffing) -> float:
    """Share of `rate` requests a second that begin late with so many replicas."""
    if not staffing.pooled:
        replicas, rate = 1, rate / replicas
    servers = replicas * staffing.servers
    load = rate * staffing.service
    if load < _SMALL:
        return 0.0
    pace = 2 / (1 + staffing.variation) / staffing.service
    drain = pace * (servers - load)  # what a queue shrinks by, per second, in units of the wait
    if not staffing.ordered and drain <= 0:
        return 1.0
    # 1 / P(the last server is free to take a request), by Erlang's recursion.
    inverse = term = 1.0
    for busy in range(servers - 1, 0, -1):
        term *= busy / load
        inverse += term
        if term < 1e-12 * inverse:
            break
    patience = staffing.patience
    if drain * patience < -50:
        return 1 - servers / load
    tail = math.exp(-drain * patience)
    if staffing.ordered:
        waits = patience if abs(drain * patience) < _SMALL else (1 - tail) / drain
        late = rate * tail / (pace * servers)
        return late / (inverse + rate * waits + late)
    return min(1.0, rate / drain * tail / (inverse + rate / drain))


def smallest(keeps: Callable[[int], bool], guess: int, most: int) -> int | None:
    """The smallest count from 1 to `most` that meets the monotonic condition: by doubling steps away from `guess`, then
    bisection. None: `most` does not meet it."""
    low, high, at, step = 0, most + 1, min(max(guess, 1), most), 1
    while high - low > 1:
        low, high = (low, at) if keeps(at) else (at, high)
        stepped = max(1, high - step) if low == 0 else min(most, low + step)
        at = stepped if low == 0 or high > most else (low + high) // 2
        step *= 2
    return high if high <= most else None

"""How many replicas a rate of requests needs, so that all but a small share begin to be answered in time.

Queueing theory with two moments. Replicas that share one queue are an M/G/n system; where the engines serve first those
that can still be in time (policy `deadline`), a request that is late costs nothing that others need, so the system is
M/G/n with impatient requests: M/M/n+D (Baccelli and Hebuterne 1981), its rates scaled by 2 / (1 + variation) for
services that are not exponential (the usual two-moment approximation, Kimura 1994). Where requests are spread without
regard to load, each replica is a system of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_REPLICAS = 10_000

_SMALL = 1e-9


@dataclass(frozen=True, slots=True)
class Staffing:
    """The properties of replicas that staffing depends on.

    Attributes:
        service: seconds of a server that a request takes.
        variation: squared coefficient of variation of the work of a request.
        patience: seconds that a request may wait before its prefill begins.
        share: share of requests that may begin late.
        servers: servers of a replica: 1 where requests are served one after another, its slots where they are served at
            once.
        pooled: requests go to the replica with the least work; else anywhere.
        ordered: engines serve requests first that can still be in time; else first come, first served.
    """

    service: float
    variation: float
    patience: float
    share: float
    servers: int = 1
    pooled: bool = True
    ordered: bool = True


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


def replicas_needed(rate: float, staffing: Staffing) -> int:
    """The fewest replicas with which at most `staffing.share` of `rate` requests a second begin late; at least 1, at
    most `MOST_REPLICAS`."""
    low, high = 0, min(MOST_REPLICAS, max(1, math.ceil(rate * staffing.service / staffing.servers)))
    while share_late(high, rate, staffing) > staffing.share:
        if high == MOST_REPLICAS:
            return high
        low, high = high, min(MOST_REPLICAS, high + max(1, high // 8))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if share_late(middle, rate, staffing) > staffing.share else (low, middle)
    return high

"""State shared by all requests of one relay process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from inflight_gateway.relay.budget import BudgetLimits, RetryBudget
from inflight_gateway.relay.decide import Limits
from inflight_gateway.relay.inner import InnerPool
from inflight_gateway.types import Finished, Retried

MAX_BODY_BYTES = 32 * 2**20
"""Of one generation request, as Envoy's listeners."""

MAX_BODIES_BYTES = 256 * 2**20
"""Of all requests in flight, in all processes together: bodies are kept until their answers are complete, to be sent
again. While bodies come and go they take twice as much in the relay and in Envoy: 1 GiB each is enough."""


def bodies_bytes_of_one(processes: int) -> int:
    """Share of one process, which cannot know what the others keep; at least one body of the maximum size."""
    return max(MAX_BODY_BYTES, MAX_BODIES_BYTES // processes)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Attributes:
    silence_s: an attempt fails after this time without a byte; engines send a heartbeat each second.
    max_bodies_bytes: of the requests in flight in this process.
    """

    silence_s: float = 5.0
    max_bodies_bytes: int = MAX_BODIES_BYTES
    limits: Limits = field(default_factory=Limits)
    budget: BudgetLimits = field(default_factory=BudgetLimits)


@dataclass(slots=True)
class Shared:
    """Attributes: bodies_bytes: of requests in flight. report: receives the report of a finished one. retried: of one
    that Envoy tried at several endpoints."""

    pool: InnerPool
    tuning: Tuning
    budget: RetryBudget
    report: Callable[[Finished], None]
    retried: Callable[[Retried], None]
    bodies_bytes: int = 0

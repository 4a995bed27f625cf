"""State shared by all requests of one relay process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from inflight_gateway.relay.bodies import MAX_BODIES_BYTES, Bodies
from inflight_gateway.relay.budget import BudgetLimits, RetryBudget
from inflight_gateway.relay.decide import Limits
from inflight_gateway.relay.engine_pool import EnginePool
from inflight_gateway.relay.kept import Kept
from inflight_gateway.types import Finished, Retried


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of one relay process.

    Attributes:
        silence_s: an attempt fails after this time without a byte; engines send a heartbeat each second.
        head_s: an attempt fails after this time without a head of a response: engines send it at once.
        max_bodies_bytes: most bytes of the bodies of requests in flight in this process.
    """

    silence_s: float = 5.0
    head_s: float = 10.0
    max_bodies_bytes: int = MAX_BODIES_BYTES
    limits: Limits = field(default_factory=Limits)
    budget: BudgetLimits = field(default_factory=BudgetLimits)


@dataclass(slots=True)
class Shared:
    """Dependencies of requests. Attributes: report: receives the report of a finished request. retried: receives the
    report of an attempt for which Envoy tried several endpoints."""

    pool: EnginePool
    kept: Kept
    tuning: Tuning
    bodies: Bodies
    budget: RetryBudget
    report: Callable[[Finished], None]
    retried: Callable[[Retried], None]

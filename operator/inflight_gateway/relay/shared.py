"""State shared by all requests of one relay process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from inflight_gateway.relay.budget import BudgetLimits, RetryBudget
from inflight_gateway.relay.decide import Limits
from inflight_gateway.relay.inner import InnerPool
from inflight_gateway.types import Finished

MAX_BODY_BYTES = 32 * 2**20
"""Of one generation request, as Envoy's listeners."""

MAX_BODIES_BYTES = 512 * 2**20
"""Of all that are under way in one process: each body is kept until its answer is complete, to be sent again."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Attributes:
    silence_s: an attempt fails after this time without a byte; engines send a heartbeat each second.
    """

    silence_s: float = 5.0
    limits: Limits = field(default_factory=Limits)
    budget: BudgetLimits = field(default_factory=BudgetLimits)


@dataclass(slots=True)
class Shared:
    """Attributes: bodies_bytes: of requests in flight. report: receives the report of a finished one."""

    pool: InnerPool
    tuning: Tuning
    budget: RetryBudget
    report: Callable[[Finished], None]
    bodies_bytes: int = 0

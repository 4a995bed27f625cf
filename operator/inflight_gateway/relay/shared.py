"""State shared by all requests of one relay process."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight_base.http.engine_pool import EnginePool
from inflight_base.manifest.engines import EngineTypeName
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.relay.answers.kept import Kept
from inflight_gateway.relay.budget import BudgetLimits, RetryBudget
from inflight_gateway.relay.channels import Channels
from inflight_gateway.relay.decide import Limits
from inflight_gateway.relay.intake.admission import Admission
from inflight_gateway.relay.intake.bodies import MAX_BODIES_BYTES, Bodies
from inflight_gateway.relay.pickers.alone import Alone
from inflight_gateway.relay.pickers.asks import Asks
from inflight_gateway.types import ServiceConfig

_MAX_TYPES = 10_000
"""Most engines that are known by the form of their answers; gone ones are among them."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings of one relay process.

    Attributes:
        silence_s: an attempt fails after this time without a byte; engines send a heartbeat each second.
        mute_s: the same after the first token, for engines without heartbeats.
        head_s: an attempt fails after this time without a head: engines send it once a request is tokenized and queued.
        waiting_s: seconds of waiting for a replica after which a stream is begun, and between its comments.
        max_bodies_bytes: most bytes of the bodies of requests in flight in this process.
    """

    silence_s: float = 5.0
    mute_s: float = 30.0
    head_s: float = 10.0
    waiting_s: float = 15.0
    max_bodies_bytes: int = MAX_BODIES_BYTES
    limits: Limits = field(default_factory=Limits)
    budget: BudgetLimits = field(default_factory=BudgetLimits)


@dataclass(slots=True)
class Shared:
    """Dependencies of requests. Attributes: counted: memory of answers whose token counts are read."""

    tuning: Tuning
    catalog: Catalog
    pool: EnginePool
    bodies: Bodies
    kept: Kept
    counted: Kept
    budget: RetryBudget
    admission: Admission
    alone: Alone
    asks: Asks
    channels: Channels
    types: dict[str, EngineTypeName] = field(default_factory=dict)
    """Types of engines by the form of their latest answer. While a service changes its type, pods of the earlier one
    take requests, too."""

    def type_of(self, engine: str, config: ServiceConfig) -> EngineTypeName:
        """Returns the type of an engine of a service."""
        return self.types.get(engine, config.engine.name)

    def answered(self, engine: str, kind: EngineTypeName) -> None:
        """Notes the type of an engine by its answer."""
        if engine not in self.types and len(self.types) >= _MAX_TYPES:
            self.types.clear()
        self.types[engine] = kind

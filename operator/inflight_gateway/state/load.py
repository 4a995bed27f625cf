"""The load reported by one gateway pod, and its line format.

A line is a JSON object: `{"gateway":POD,"full":true,"services":[...]}`. A full line holds all services, other lines
hold only those that have changed since the previous line; services missing in a full line are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.state.demand import ClassDemand, DemandCounters


class ServiceLoad(msgspec.Struct, frozen=True):
    """Load of one service, as this gateway pod sees it.

    Attributes:
        held: requests held here. held_prompt_tokens: estimated tokens of their prompts.
        oldest_held_s: seconds that the oldest of them has waited; 0 without any.
        in_flight: requests that this gateway has sent to replicas.
        idle_s: seconds since its last request arrived or ended; None: no request since this gateway started.
        demand: its demand since this gateway started, by class.
    """

    held: int = 0
    held_prompt_tokens: int = 0
    oldest_held_s: float = 0.0
    in_flight: int = 0
    idle_s: float | None = None
    demand: Mapping[str, ClassDemand] = {}


class GatewayLoads:
    """In-flight and held requests of this gateway, and its demand. Args: clock: seconds, monotonic."""

    def __init__(
        self,
        catalog: Catalog,
        holds: HoldQueue,
        ledger: Ledger,
        demand: DemandCounters,
        clock: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._holds = holds
        self._ledger = ledger
        self._demand = demand
        self._clock = clock
        self._changed: set[ServiceKey] = set()
        """Services that came since the last call of `changes`."""
        catalog.subscribe(lambda change: self._changed.update(change.services))

    def service_loads(self) -> dict[ServiceKey, ServiceLoad]:
        """Returns the load of every service in the catalog."""
        now = self._clock()
        return {key: self._load(key, now) for key in self._catalog.services}

    def changes(self) -> dict[ServiceKey, ServiceLoad]:
        """Returns the loads of services that have changed since the last call, in O(changed)."""
        now, services = self._clock(), self._catalog.services
        holds, ledger, demand = self._holds, self._ledger, self._demand
        touched = self._changed | holds.changed | ledger.changed_services | demand.changed
        for kept in (self._changed, holds.changed, ledger.changed_services, demand.changed):
            kept.clear()
        return {key: self._load(key, now) for key in touched if key in services}

    def _load(self, key: ServiceKey, now: float) -> ServiceLoad:
        waiting = self._holds.waiting(key, now)
        in_flight, idle_s = self._ledger.service(key, now)
        return ServiceLoad(
            waiting.requests, waiting.prompt_tokens, waiting.oldest_s, in_flight, idle_s, self._demand.of(key)
        )


def line(gateway: str, services: Mapping[ServiceKey, ServiceLoad], *, full: bool) -> bytes:
    """Returns a line with its line feed. Args: gateway: name of this pod."""
    entries = [
        {
            "namespace": key.namespace,
            "name": key.name,
            **msgspec.structs.asdict(load),
            "oldest_held_s": round(load.oldest_held_s, 3),
            "idle_s": None if load.idle_s is None else round(load.idle_s, 3),
        }
        for key, load in services.items()
    ]
    return _ENCODER.encode({"gateway": gateway, "full": full, "services": entries}) + b"\n"


_ENCODER = msgspec.json.Encoder()

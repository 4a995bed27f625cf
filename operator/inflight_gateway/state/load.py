"""The load reported by one gateway pod, and its line format.

A line is a JSON object: `{"gateway":POD,"full":true,"services":[...],"endpoints":[...]}`. A full line holds everything,
other lines hold only the changes since the previous line; entries missing in a full line are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.state.demand import ClassDemand, DemandCounters


@dataclass(frozen=True, slots=True)
class ServiceLoad:
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
    demand: Mapping[str, ClassDemand] = field(default_factory=dict)


class SentLoad(NamedTuple):
    """Requests sent by one gateway pod to one endpoint.

    Attributes:
        in_flight: requests that have not ended.
        sent_tokens: prompt tokens sent since this gateway started: a counter, so a lost line causes no error.
    """

    in_flight: int = 0
    sent_tokens: int = 0


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

    def all(self) -> Loads:
        """Returns all loads. `sent_tokens` are totals: `Ledger.peer` computes differences."""
        sent = self._ledger.sent
        return Loads(self.service_loads(), {address: SentLoad(*sent(address)) for address in self._ledger.addresses()})

    def changes(self) -> Loads:
        """Returns the loads of services and endpoints that have changed since the last call, in O(changed). The load of
        a removed endpoint is zero."""
        now, services = self._clock(), self._catalog.services
        holds, ledger, demand = self._holds, self._ledger, self._demand
        touched = self._changed | holds.changed | ledger.changed_services | demand.changed
        changes = Loads(
            {key: self._load(key, now) for key in touched if key in services},
            {address: SentLoad(*ledger.sent(address)) for address in ledger.changed_addresses},
        )
        for kept in (self._changed, holds.changed, ledger.changed_services, ledger.changed_addresses, demand.changed):
            kept.clear()
        return changes

    def _load(self, key: ServiceKey, now: float) -> ServiceLoad:
        waiting = self._holds.waiting(key, now)
        in_flight, idle_s = self._ledger.service(key, now)
        return ServiceLoad(
            waiting.requests, waiting.prompt_tokens, waiting.oldest_s, in_flight, idle_s, self._demand.of(key)
        )


@dataclass(frozen=True, slots=True)
class Loads:
    """The content of a line."""

    services: Mapping[ServiceKey, ServiceLoad]
    endpoints: Mapping[str, SentLoad]

    @property
    def empty(self) -> bool:
        return not self.services and not self.endpoints

    def line(self, gateway: str, *, full: bool) -> bytes:
        """Returns the line with its line feed. `gateway`: name of this pod."""
        services = [
            _Service(
                key.namespace,
                key.name,
                load.held,
                load.held_prompt_tokens,
                round(load.oldest_held_s, 3),
                load.in_flight,
                None if load.idle_s is None else round(load.idle_s, 3),
                load.demand,
            )
            for key, load in self.services.items()
        ]
        endpoints = [_Endpoint(address, *load) for address, load in self.endpoints.items()]
        return _ENCODER.encode(_Line(gateway, full, services, endpoints)) + b"\n"


@dataclass(frozen=True, slots=True)
class ReadLine:
    """A line of another gateway pod."""

    gateway: str
    full: bool
    loads: Loads


def read_line(line: bytes) -> ReadLine:
    """Reads a line of `Loads.line`. Unknown fields are ignored.

    Raises:
        ValueError: it is no such line; the message names the field.
    """
    read = _DECODER.decode(line)
    return ReadLine(
        read.gateway,
        read.full,
        Loads(
            {
                ServiceKey(one.namespace, one.name): ServiceLoad(
                    one.held, one.held_prompt_tokens, one.oldest_held_s, one.in_flight, one.idle_s, one.demand
                )
                for one in read.services
            },
            {one.address: SentLoad(one.in_flight, one.sent_tokens) for one in read.endpoints},
        ),
    )


class _Service(msgspec.Struct):
    namespace: str
    name: str
    held: int = 0
    held_prompt_tokens: int = 0
    oldest_held_s: float = 0.0
    in_flight: int = 0
    idle_s: float | None = None
    demand: Mapping[str, ClassDemand] = {}


class _Endpoint(msgspec.Struct):
    address: str
    in_flight: int = 0
    sent_tokens: int = 0


class _Line(msgspec.Struct):
    gateway: str
    full: bool = False
    services: list[_Service] = []
    endpoints: list[_Endpoint] = []


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Line)

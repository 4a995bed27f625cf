"""The load reported by one gateway pod, and its line format.

A line is a JSON object: `{"gateway":POD,"full":true,"services":[...]}`. A full line holds all services, other lines
hold only those that have changed since the previous line; services missing in a full line are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue


class ClassDemand(NamedTuple):
    """Requests of a class at this gateway pod since it started: counters, so a lost line causes no error.

    Attributes:
        arrived: requests for the first time here, refused ones among them; one that another gateway pod has counted is
            not.
        prompt_tokens, prompt_squares: sums over them of estimated prompt tokens, and of their squares.
        output_tokens, output_squares: the same for the output tokens expected of each, over all of its choices.
        refused: those of them that limits, the queue's bounds or the maximum wait refused.
        cached_tokens: prompt tokens of those sent to engines whose prefix cache should hold them.
    """

    arrived: int = 0
    prompt_tokens: int = 0
    prompt_squares: int = 0
    output_tokens: int = 0
    output_squares: int = 0
    refused: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ServiceLoad:
    """Load of one service, as this gateway pod sees it.

    Attributes:
        held: requests held here. held_prompt_tokens: estimated tokens of their prompts.
        oldest_held_s: seconds that the oldest of them has waited; 0 without any.
        in_flight: requests that this gateway has sent to replicas.
        idle_s: seconds since its last request arrived or ended; None: no request since this gateway started.
    """

    held: int = 0
    held_prompt_tokens: int = 0
    oldest_held_s: float = 0.0
    in_flight: int = 0
    idle_s: float | None = None


class GatewayLoads:
    """In-flight and held requests of this gateway. Args: clock: seconds, monotonic."""

    def __init__(self, catalog: Catalog, holds: HoldQueue, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._catalog = catalog
        self._holds = holds
        self._ledger = ledger
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
        holds, ledger = self._holds, self._ledger
        touched = self._changed | holds.changed | ledger.changed_services
        for kept in (self._changed, holds.changed, ledger.changed_services):
            kept.clear()
        return {key: self._load(key, now) for key in touched if key in services}

    def _load(self, key: ServiceKey, now: float) -> ServiceLoad:
        waiting = self._holds.waiting(key, now)
        in_flight, idle_s = self._ledger.service(key, now)
        return ServiceLoad(waiting.requests, waiting.prompt_tokens, waiting.oldest_s, in_flight, idle_s)


def line(gateway: str, services: Mapping[ServiceKey, ServiceLoad], *, full: bool) -> bytes:
    """Returns a line with its line feed. Args: gateway: name of this pod."""
    entries = [
        _Service(
            key.namespace,
            key.name,
            load.held,
            load.held_prompt_tokens,
            round(load.oldest_held_s, 3),
            load.in_flight,
            None if load.idle_s is None else round(load.idle_s, 3),
        )
        for key, load in services.items()
    ]
    return _ENCODER.encode(_Line(gateway, full, entries)) + b"\n"


class _Service(msgspec.Struct):
    namespace: str
    name: str
    held: int
    held_prompt_tokens: int
    oldest_held_s: float
    in_flight: int
    idle_s: float | None


class _Line(msgspec.Struct):
    gateway: str
    full: bool
    services: list[_Service]


_ENCODER = msgspec.json.Encoder()

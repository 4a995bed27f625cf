"""Shares of in-flight requests per tenant: a tenant above its share leaves some slots of each replica free, so that a
request of another tenant starts without waiting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.types import RequestView, ServiceConfig

ACTIVE_S = 60.0
"""Seconds for which slots are kept free for a tenant after its last request: until a person's next request."""

ENOUGH = 0.95
"""Share of the requests of tenants not above their share for which a slot should be free on arrival."""

RECENT_S = 60.0
"""Slots are claimed for no more requests than were in flight at once in the last one to two of these times."""

_ROUNDING = 1e-9
"""Relative rounding error of sums of weights."""


@dataclass(slots=True, eq=False)
class _Tenant:
    """An active tenant. Attributes: in_flight: choices of its requests in flight. size: slots that they are worth.
    above: it had more than its share at its last change."""

    weight: float
    arrived: float
    in_flight: int = 0
    size: int = 0
    above: bool = False


@dataclass(slots=True, eq=False)
class _Service:
    """The tenants of one service.

    Attributes:
        tenants: active tenants, in the order of their last arrival.
        weight: sum of their weights.
        size: slots that the requests in flight of all tenants are worth.
        within: choices in flight of tenants not `above`, each of which takes a slot.
        needed: quantile `ENOUGH` of `within`, counting an arrival of such a tenant, as those arrivals found it.
        most: the largest of these values in the period `RECENT_S` with this number, and in the one before.
        period: number of the period of the last such arrival.
    """

    tenants: dict[str, _Tenant] = field(default_factory=dict)
    weight: float = 0.0
    size: int = 0
    within: int = 0
    needed: float = 1.0
    most: tuple[int, int] = (0, 0)
    period: int = 0

    def add(self, tenant: _Tenant, choices: int, size: int) -> None:
        """Changes the choices in flight of a tenant; `choices` is 0 for a request that has just arrived."""
        if not tenant.above:
            self.within -= tenant.in_flight
        tenant.in_flight += choices
        self.size += size
        tenant.size += size
        tenant.above = self.is_above(tenant)
        if not tenant.above:
            self.within += tenant.in_flight

    def is_above(self, tenant: _Tenant) -> bool:
        if len(self.tenants) == 1:
            return False
        return tenant.size * self.weight > tenant.weight * self.size * (1 + _ROUNDING)

    def is_below(self, tenant: _Tenant) -> bool:
        return tenant.size * self.weight < tenant.weight * self.size * (1 - _ROUNDING)

    def learn(self, now: float, choices: int) -> None:
        """Updates `needed` when a request of a tenant not above its share arrives. Steps up and down in the ratio of
        the quantile's odds hold it there: Robbins and Monro 1951, "A Stochastic Approximation Method"."""
        newest, before = self._most_at(now)
        self.most, self.period = (max(newest, self.within + choices), before), int(now // RECENT_S)
        needed = self.needed_at(now)
        self.needed = needed + (ENOUGH if self.within + choices > needed else ENOUGH - 1)

    def needed_at(self, now: float) -> float:
        """Returns `needed`, without what only older arrivals found: steps down from a burst may take hours."""
        return min(self.needed, max(self.within + 1, *self._most_at(now)))

    def _most_at(self, now: float) -> tuple[int, int]:
        passed = int(now // RECENT_S) - self.period
        return self.most if passed <= 0 else (0, self.most[0]) if passed == 1 else (0, 0)


class TenantShares:
    """Requests in flight of the tenants of each service, counting only those that this gateway sent.

    A tenant is active from its first request until `ACTIVE_S` after its last, and while it has one in flight. The share
    of an active tenant is its weight among all of them.
    """

    def __init__(self) -> None:
        self._services: dict[ServiceKey, _Service] = {}
        self._started: dict[str, tuple[_Service, _Tenant, int, int]] = {}

    def arrived(self, request: RequestView, config: ServiceConfig, now: float) -> None:
        """Notes that a request arrived, which may have to wait."""
        service = self._services.setdefault(request.service, _Service())
        tenant = service.tenants.pop(request.tenant, None) or _Tenant(0.0, now)
        weight = config.tenant(request.tenant).weight
        service.weight += weight - tenant.weight
        tenant.weight, tenant.arrived = weight, now
        service.tenants[request.tenant] = tenant
        self._forget(service, now)
        service.add(tenant, 0, 0)
        if not tenant.above and len(service.tenants) > 1:
            service.learn(now, request.choices)

    def started(self, request: RequestView, size: int = 1) -> None:
        """Adds an arrived request that is sent to a replica. Args: size: slots, see `pick.late_binding.slots_worth`."""
        service = self._services.get(request.service)
        tenant = None if service is None else service.tenants.get(request.tenant)
        if service is not None and tenant is not None:
            service.add(tenant, request.choices, size)
            self._started[request.request_id] = service, tenant, request.choices, size

    def ended(self, request_id: str) -> None:
        """Removes a request that has ended, if it had started."""
        started = self._started.pop(request_id, None)
        if started is not None:
            service, tenant, choices, size = started
            service.add(tenant, -choices, -size)

    def above(self, request: RequestView, now: float) -> bool:
        """Returns whether the request's tenant has more than its share of the requests in flight. At least one active
        tenant has not; a single tenant never has."""
        service, tenant = self._active(request, now)
        return service is not None and tenant is not None and service.is_above(tenant)

    def below(self, request: RequestView, now: float) -> bool:
        """Returns whether the request's tenant has less than its share of the requests in flight; another has more."""
        service, tenant = self._active(request, now)
        return service is not None and tenant is not None and service.is_below(tenant)

    def _active(self, request: RequestView, now: float) -> tuple[_Service | None, _Tenant | None]:
        service = self._services.get(request.service)
        if service is None:
            return None, None
        self._forget(service, now)
        return service, service.tenants.get(request.tenant)

    def claimed(self, name: ServiceKey, now: float) -> int:
        """Returns the slots that tenants above their share should leave free for requests of the others, over all
        replicas: as many as their recent requests needed, minus their running requests."""
        service = self._services.get(name)
        return 0 if service is None else max(0, math.ceil(service.needed_at(now)) - service.within)

    def forget(self, service: ServiceKey) -> None:
        """Removes a deleted service."""
        self._services.pop(service, None)

    @staticmethod
    def _forget(service: _Service, now: float) -> None:
        """Removes tenants that are no longer active."""
        while service.tenants:
            name, tenant = next(iter(service.tenants.items()))
            if tenant.arrived > now - ACTIVE_S:
                return
            del service.tenants[name]
            if tenant.in_flight:
                tenant.arrived = now
                service.tenants[name] = tenant
            else:
                service.weight -= tenant.weight

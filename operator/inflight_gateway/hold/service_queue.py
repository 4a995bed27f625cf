"""Held requests of one service, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inflight_gateway.hold.bounds import Room
from inflight_gateway.hold.counters import VirtualCounters
from inflight_gateway.hold.lead import Lead
from inflight_gateway.hold.order import Held, TenantQueue
from inflight_gateway.types import RequestView, ServiceConfig

MOST_LEAD = 32_768.0
"""Tokens of service, relative to weight, by which a tenant (and its class) may be ahead of the next one and still pass
its head: more than a tenant with a modest load is charged before the others catch up, and a bound for one whose
requests have far more tokens than those of others, which its share of slots alone would not be."""


class _ClassQueue:
    """The tenants of one class."""

    def __init__(self) -> None:
        self.counters = VirtualCounters()
        self.tenants: dict[str, TenantQueue] = {}
        """Of those that wait."""


class ServiceQueue:
    """The waiting class with the fewest tokens served relative to its weight is next; within it the tenant by the same
    rule; among the tenant's requests, `TenantQueue` decides: the engine's order with classes and the `fair` policy.

    Attributes:
        room: size of the whole queue.
        lead: time before its deadline at which a request has to start.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.room = Room()
        self.lead = Lead()
        self._by_tenant: dict[str, Room] = {}
        self._counters = VirtualCounters()
        self._classes: dict[str, _ClassQueue] = {}
        self._held: dict[int, Held] = {}
        """By sequence: the first is the oldest."""
        self.config = config

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def tenant_room(self, tenant: str) -> Room:
        return self._by_tenant.get(tenant) or Room()

    def push(self, held: Held) -> None:
        request = held.request
        queue = self._classes.setdefault(request.service_class, _ClassQueue())
        if not queue.tenants:
            self._counters.start_waiting(request.service_class, self._class_weight(request.service_class))
        tenant = queue.tenants.get(request.tenant)
        if tenant is None:
            tenant = queue.tenants[request.tenant] = TenantQueue()
            queue.counters.start_waiting(request.tenant, self._tenant_weight(request.tenant))
        tenant.push(held)
        self._held[held.sequence] = held
        self.room.add(request)
        self._by_tenant.setdefault(request.tenant, Room()).add(request)

    def head(self, now: float) -> Held | None:
        """The next to start, left in place."""
        service_class = self._counters.least()
        if service_class is None:
            return None
        queue = self._classes[service_class]
        tenant = queue.counters.least()
        return None if tenant is None else queue.tenants[tenant].head(now + self.lead.wait(self.config.ttft_s))

    def passing(self, now: float, above: Callable[[RequestView, float], bool]) -> Held | None:
        """The request that may pass the head, left in place, if the head's tenant is above its share and leaves slots
        free to others: that of the least served tenant not above its own, at most `MOST_LEAD` ahead.

        The slots are free for such a request, so holding it would only keep them empty. It does not starve the head:
        once enough of the head's tenant's requests have ended, that tenant is no longer above its share.
        """
        start = now + self.lead.wait(self.config.ttft_s)
        best: tuple[float, float] | None = None
        found: Held | None = None
        for service_class, queue in self._classes.items():
            if not queue.tenants or (class_lead := self._counters.lead(service_class)) > MOST_LEAD:
                continue
            for name, tenant in queue.tenants.items():
                order = class_lead, queue.counters.lead(name)
                if order[1] > MOST_LEAD or (best is not None and order >= best):
                    continue
                held = tenant.head(start)
                if held is not None and not above(held.request, now):
                    best, found = order, held
        return found

    def start(self, held: Held, tokens: float) -> None:
        """Remove the head, or one that passes it, and charge its class and tenant."""
        request = held.request
        self._classes[request.service_class].tenants[request.tenant].start(held)
        self.charge(request.service_class, request.tenant, tokens)
        self._left(held)

    def discard(self, held: Held) -> None:
        """Remove a request at any position."""
        request = held.request
        self._classes[request.service_class].tenants[request.tenant].discard(held)
        self._left(held)

    def charge(self, service_class: str, tenant: str, tokens: float) -> None:
        self._counters.charge(service_class, tokens)
        queue = self._classes.get(service_class)
        if queue is not None:
            queue.counters.charge(tenant, tokens)

    def _left(self, held: Held) -> None:
        request = held.request
        del self._held[held.sequence]
        self.room.add(request, -1)
        room = self._by_tenant[request.tenant]
        room.add(request, -1)
        if not room.requests:
            del self._by_tenant[request.tenant]
        queue = self._classes[request.service_class]
        if not len(queue.tenants[request.tenant]):
            del queue.tenants[request.tenant]
            queue.counters.stop_waiting(request.tenant)
        if not queue.tenants:
            self._counters.stop_waiting(request.service_class)

    def _class_weight(self, name: str) -> float:
        return next((each.weight for each in self.config.classes if each.name == name), 1.0)

    def _tenant_weight(self, name: str) -> float:
        return next((each.weight for each in self.config.tenants if each.name == name), 1.0)

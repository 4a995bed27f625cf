"""Policy `fair`: the tenant with the least service is next."""

from __future__ import annotations

from inflight_engine.request import Request
from inflight_engine.scheduling.policies.base import Policy
from inflight_policies.lazy_heap import LazyHeap
from inflight_policies.service_counter import ServiceCounters
from inflight_settings.scheduling import SchedulingSettings


class Fair(Policy):
    """A virtual token counter for each tenant (`ServiceCounters`); within a tenant, first come, first served.

    Of tenants with equal counters, the one that has been waiting without a break for longest is next.
    """

    def __init__(self, config: SchedulingSettings) -> None:
        self._counters = ServiceCounters()
        self._queues: dict[str, LazyHeap[Request]] = {}
        """Waiting requests by tenant."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, request: Request, clock: int) -> None:
        queue = self._queues.get(request.scheduling.tenant)
        if queue is None:
            queue = self._queues[request.scheduling.tenant] = LazyHeap()
            self._counters.start_waiting(request.scheduling.tenant, request.order, clock)
        queue.push(request, (request.order,))
        self._size += 1

    def head(self, clock: int) -> Request | None:
        tenant = self._counters.least(clock)
        first = None if tenant is None else self._queues[tenant].first()
        return None if first is None else first[1]

    def firsts(self, count: int, clock: int) -> tuple[list[Request], float]:
        """The first request of each of the next tenants; where only one waits, its next ones."""
        tenants, until = self._counters.firsts(count, clock)
        each = count if len(tenants) == 1 else 1
        return [request for tenant in tenants for _, request in self._queues[tenant].firsts(each)], until

    def remove(self, request: Request) -> None:
        queue = self._queues[request.scheduling.tenant]
        queue.remove(request)
        if not queue:
            del self._queues[request.scheduling.tenant]
            self._counters.stop_waiting(request.scheduling.tenant)
        self._size -= 1

    def admitted(self, request: Request, num_tokens: int, clock: int) -> None:
        self._counters.admitted(request.scheduling.tenant, num_tokens, clock)

    def decode_started(self, request: Request, clock: int) -> None:
        self._counters.decode_started(request.scheduling.tenant, clock)

    def decode_ended(self, request: Request, clock: int) -> None:
        self._counters.decode_ended(request.scheduling.tenant, clock)

    def generated(self, request: Request, service: int, clock: int) -> None:
        self._counters.charge(request.scheduling.tenant, service, clock)

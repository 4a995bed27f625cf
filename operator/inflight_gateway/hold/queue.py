"""The hold queue of the gateway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.hold.bounds import exceeded, queue_full
from inflight_gateway.hold.service_queue import QueuedRequest, ServiceQueue
from inflight_gateway.types import Pick, Refusal, RequestView, ServiceConfig
from inflight_policies.lazy_heap import LazyHeap
from inflight_policies.service_counter import OUTPUT_TOKEN, PROMPT_TOKEN

CanStart = Callable[[RequestView], Pick | None]
AboveShare = Callable[[RequestView, float], bool]
"""Returns whether the request's tenant has more than its share of the requests in flight now: `TenantShares.above`."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Totals of the requests held for a service. Attributes: oldest_s: wait of the oldest one; 0 without any."""

    requests: int = 0
    prompt_tokens: int = 0
    body_bytes: int = 0
    oldest_s: float = 0.0


RECHECK_S = 0.01
"""Seconds after which a head that could not start is tried again because of time alone: backlogs have become shorter,
tenants inactive."""


class HoldQueue:
    """Queues of all services. Every request should pass through `offer` and `release`, even if a replica is free: then
    no request overtakes waiting ones except by `ServiceQueue.overtaking`, and all are charged to their tenants.

    A request that was offered leaves once: by `release`, `expire` or `remove`.

    Attributes:
        changed: services whose held requests have changed since the reader emptied it (`state.load.GatewayLoads`).
    """

    def __init__(self) -> None:
        self.changed: set[ServiceKey] = set()
        self._services: dict[ServiceKey, ServiceQueue] = {}
        self._by_id: dict[str, QueuedRequest] = {}
        self._by_expiry: LazyHeap[QueuedRequest] = LazyHeap()
        self._offers = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def offer(
        self,
        request: RequestView,
        config: ServiceConfig,
        now: float,
        *,
        since: float | None = None,
        admitted: bool = False,
    ) -> Refusal | None:
        """Enqueue a request, within the bounds of its service; else return its refusal.

        Args:
            since: when it began to wait, which decides its place and its maximum wait; None: now.
            admitted: another gateway pod admitted it, so the bounds do not apply.
        """
        queue = self._services.get(request.service)
        if queue is None:
            queue = self._services[request.service] = ServiceQueue(config)
        queue.config = config
        if request.request_id in self._by_id:
            return Refusal(400, "request_id_in_use", f"a request with the id {request.request_id} waits already")
        bounds, since = config.hold, now if since is None else since
        why = None if admitted else exceeded(request, bounds, queue.room, queue.tenant_room(request.tenant))
        if why is not None:
            oldest_s = self.waiting(request.service, now).oldest_s
            return queue_full(request.service, why, min(oldest_s, bounds.max_wait_s))
        if queue.blocked is not None and queue.blocked.request.tenant != request.tenant:
            # The head's tenant may have to leave slots free from now on, which this request may take.
            queue.blocked = None
        self._offers += 1
        queued = QueuedRequest(request, self._offers, since)
        queue.push(queued)
        self._by_id[request.request_id] = queued
        self.changed.add(request.service)
        self._by_expiry.push(queued, (since + bounds.max_wait_s, queued.sequence))
        return None

    def release(
        self,
        now: float,
        can_start: CanStart,
        service: ServiceKey | None = None,
        above: AboveShare | None = None,
        *,
        changed: bool = True,
    ) -> list[tuple[RequestView, Pick]]:
        """Remove the requests that can start; returns them in pick order. A request overtakes the head of its service's
        queue only if the head's tenant is above its share and cannot start, and its own is not
        (`ServiceQueue.overtaking`).

        Args:
            can_start: must record its pick before it returns, so that the next pick includes it (`Ledger.begin`).
            service: only its requests; None: the requests of all services.
            above: None: no tenant is above its share.
            changed: False if no replica and no request at one has changed, but time has passed or a request arrived: a
                head that could not start is then not tried again before `RECHECK_S`.
        """
        released: list[tuple[RequestView, Pick]] = []
        queues = list(self._services) if service is None else [service] if service in self._services else []
        for key in queues:
            queue = self._services[key]
            if changed or now >= queue.blocked_until:
                queue.blocked = None
            while (queued := queue.head(now)) is not None and queued is not queue.blocked:
                head = queued
                pick = can_start(queued.request)
                if pick is None and above is not None and above(queued.request, now):
                    queued = queue.overtaking(now, above)
                    pick = can_start(queued.request) if queued is not None else None
                if queued is None or pick is None:
                    queue.blocked, queue.blocked_until = head, now + RECHECK_S
                    break
                computed = max(0, queued.request.prompt_tokens - pick.cached_tokens)
                # Later attempts: the prompt and the first token are charged with the first one.
                tokens = PROMPT_TOKEN * computed + OUTPUT_TOKEN if queued.request.attempt == 1 else 0
                queue.start(queued, pick, tokens, now)
                self._forget(queued)
                released.append((queued.request, pick))
        return released

    def kept_free(self, request_id: str, now: float) -> float:
        """Returns the number of replicas that a held request leaves able to start another at once, when it is started
        (`ServiceQueue.kept_free`)."""
        queued = self._by_id[request_id]
        return self._services[queued.request.service].kept_free(queued, now)

    def expire(self, now: float) -> list[RequestView]:
        """Remove requests that reached their maximum wait, the first to expire first."""
        expired: list[RequestView] = []
        while (first := self._by_expiry.first()) is not None and first[0][0] <= now:
            self._discard(first[1])
            expired.append(first[1].request)
        return expired

    def remove(self, request_id: str) -> bool:
        """Remove a request whose client disconnected; False: it is not held."""
        queued = self._by_id.get(request_id)
        if queued is None:
            return False
        self._discard(queued)
        return True

    def served(self, request: RequestView, output_tokens: int) -> None:
        """Charge the tokens that a request generated since the last call; `release` has charged its prompt and first
        token."""
        queue = self._services.get(request.service)
        if queue is not None:
            queue.charge(request.service_class, request.tenant, OUTPUT_TOKEN * output_tokens)

    def waiting(self, service: ServiceKey, now: float) -> Waiting:
        queue = self._services.get(service)
        oldest = None if queue is None else queue.oldest
        if queue is None or oldest is None:
            return Waiting()
        room = queue.room
        return Waiting(room.requests, room.prompt_tokens, room.body_bytes, now - oldest.since)

    def forget(self, service: ServiceKey) -> None:
        """Remove a deleted service, without held requests."""
        self._services.pop(service, None)

    def _discard(self, queued: QueuedRequest) -> None:
        self._services[queued.request.service].discard(queued)
        self._forget(queued)

    def _forget(self, queued: QueuedRequest) -> None:
        del self._by_id[queued.request.request_id]
        self.changed.add(queued.request.service)
        self._by_expiry.remove(queued)

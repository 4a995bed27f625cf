"""Dispatches requests to replicas, or holds them until a replica can start them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.hold.shares import TenantShares
from inflight_gateway.pick.late_binding import slots_worth
from inflight_gateway.pick.load import EndpointLoad
from inflight_gateway.pick.picker import Picker
from inflight_gateway.types import Endpoint, Pick, Refusal, RequestView, ServiceConfig

_log = logging.getLogger(__name__)

FAULT_LOG_S = 60.0
"""Minimum seconds between two log lines about failed picks."""

RETRY_AFTER_S = 5
"""Retry-After for clients whose hold expired: by then a replica may have become free or ready."""


class Start(NamedTuple):
    """A request can start. Attributes: held_s: seconds that it was held."""

    pick: Pick
    held_s: float


@dataclass(slots=True, eq=False)
class _Waiting:
    """A held request. Attributes: allowed: addresses that another gateway allows; empty: all."""

    service: ServiceKey
    outcome: asyncio.Future[Start | Refusal]
    since: float
    allowed: Collection[str]


class Dispatcher:
    """Sends requests through the hold queue, even if a replica is free, so no request overtakes waiting ones except by
    `ServiceQueue.overtaking`. Request ids are unique for each attempt, see `Exchange`.

    Args:
        clock: seconds, monotonic.
        changed: called when the load of a service has changed.
    """

    def __init__(
        self,
        catalog: Catalog,
        picker: Picker,
        holds: HoldQueue,
        ledger: Ledger,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._catalog = catalog
        self._picker = picker
        self._holds = holds
        self._ledger = ledger
        self._clock = clock
        self._changed = changed
        self._shares = TenantShares()
        self._waiting: dict[str, _Waiting] = {}
        self._fault_logged = float("-inf")

    def place(
        self, request: RequestView, config: ServiceConfig, allowed: Collection[str] = ()
    ) -> Refusal | asyncio.Future[Start | Refusal]:
        """Queues a request. The future is done already if a replica can start it now. `end` must follow in any case."""
        now = self._clock()
        self._ledger.touch(request.service, now)
        if allowed and not self._allowed(request.service, allowed):
            return none_allowed(request.service)
        refusal = self._holds.offer(request, config, now)
        if refusal is not None:
            return refusal
        self._shares.arrived(request, config, now)
        outcome: asyncio.Future[Start | Refusal] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = _Waiting(request.service, outcome, now, allowed)
        self.release(request.service)
        self._changed()
        return outcome

    def end(self, request_id: str, service: ServiceKey) -> None:
        """Removes a request whose stream has ended, or whose client disconnected while it was held."""
        if self._waiting.pop(request_id, None) is not None:
            self._holds.remove(request_id)
        self._ledger.end(request_id, self._clock())
        self._shares.ended(request_id)
        self.release(service)
        self._changed()

    def moved(self, request_id: str, service: ServiceKey, address: str) -> None:
        """Moves a request that is at another endpoint than the first picked one."""
        self._ledger.move(request_id, address, self._clock())
        self.release(service)
        self._changed()

    def release(self, service: ServiceKey | None = None) -> None:
        """Starts all requests that can start now. `service`: only its requests; None: the requests of all services."""
        now = self._clock()
        for request, pick in self._holds.release(now, self._can_start, service, self._shares.above):
            waiting = self._waiting.pop(request.request_id)
            _settle(waiting.outcome, Start(pick, now - waiting.since))

    def expire(self) -> None:
        """Rejects requests that reached their maximum wait."""
        for request in self._holds.expire(self._clock()):
            config = self._catalog.services.get(request.service)
            waited = "" if config is None else f" for {config.hold.max_wait_s:g} s (hold.maxWait)"
            self._refuse(
                request,
                Refusal(
                    503,
                    "no_replica",
                    f"no replica of {request.service} could start the request{waited}; try again",
                    (("retry-after", str(RETRY_AFTER_S)),),
                ),
            )

    def catalog_changed(self, change: Change) -> None:
        """Rejects held requests of deleted services, and starts held requests that new endpoints can serve."""
        for key in change.services - self._catalog.services.keys():
            self._shares.forget(key)
            for request in self._holds.forget(key):
                self._refuse(request, Refusal(404, "service_not_found", f"{key} was deleted"))
        for request_id, waiting in tuple(self._waiting.items()):
            if waiting.allowed and waiting.service in change.endpoints and self._lost(waiting):
                self._holds.remove(request_id)
                del self._waiting[request_id]
                _settle(waiting.outcome, none_allowed(waiting.service))
        for key in change.services | change.endpoints:
            self.release(key)

    def _can_start(self, request: RequestView) -> Pick | None:
        config = self._catalog.services.get(request.service)
        waiting = self._waiting.get(request.request_id)
        if config is None or waiting is None:
            return None
        now = self._clock()
        loads: list[EndpointLoad] = []
        try:
            above = self._shares.above(request, now)
            loads = self._ledger.loads(request.service, request, now, growing=above)
            if waiting.allowed:
                loads = [load for load in loads if load.endpoint.address in waiting.allowed]
            below, claimed = self._shares.below(request, now), self._shares.claimed(request.service, now)
            pick = self._picker.pick(request, config, loads, now, above_share=above, below_share=below, claimed=claimed)
        except Exception:
            # A gateway bug at the head of a queue would block the whole service, and end this process.
            self._log_fault(request.service, now)
            every = {endpoint.address for endpoint in self._catalog.endpoints_of(request.service)}
            pick = self._among(request.service, waiting.allowed or every, config)
        if pick is None and waiting.allowed:
            pick = self._among(request.service, waiting.allowed, config)
        if pick is not None:
            self._ledger.begin(request, pick, now)
            first = next((load for load in loads if load.endpoint == pick.endpoints[0]), None)
            size = 1 if first is None else slots_worth(first, request.prompt_tokens - pick.cached_tokens)
            self._shares.started(request, size)
        return pick

    def _log_fault(self, service: ServiceKey, now: float) -> None:
        if now >= self._fault_logged + FAULT_LOG_S:
            self._fault_logged = now
            _log.exception("picking for %s failed: by least requests for now", service)

    def _among(self, service: ServiceKey, allowed: Collection[str], config: ServiceConfig) -> Pick | None:
        """Picks by least requests, without late binding. For endpoints that another gateway allows: holding such a
        request would block all others of the service, which other replicas could start."""
        in_flight = self._ledger.sent()
        endpoints = self._allowed(service, allowed)
        endpoints.sort(key=lambda endpoint: in_flight.get(endpoint.address, (0, 0))[0])
        return Pick(tuple(endpoints[: config.max_attempts]), "least-requests") if endpoints else None

    def _allowed(self, service: ServiceKey, allowed: Collection[str]) -> list[Endpoint]:
        return [one for one in self._catalog.endpoints_of(service) if one.address in allowed]

    def _lost(self, waiting: _Waiting) -> bool:
        return not self._allowed(waiting.service, waiting.allowed)

    def _refuse(self, request: RequestView, refusal: Refusal) -> None:
        waiting = self._waiting.pop(request.request_id, None)
        if waiting is not None:
            _settle(waiting.outcome, refusal)
        self._changed()


def _settle(outcome: asyncio.Future[Start | Refusal], result: Start | Refusal) -> None:
    """Sets the outcome, unless the client has just disconnected: then the end of its stream follows."""
    if not outcome.done():
        outcome.set_result(result)


def none_allowed(service: ServiceKey) -> Refusal:
    """Returns the refusal of a request for which another gateway allows endpoints that cannot take it."""
    return Refusal(
        503,
        "no_replica",
        f"none of the endpoints that the gateway in front allows is a replica of {service} that takes requests",
        (("retry-after", str(RETRY_AFTER_S)),),
    )

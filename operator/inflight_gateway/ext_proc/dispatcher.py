"""Starts requests at replicas, or lets them wait until one can start them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from inflight_gateway.catalog import Catalog, Change
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.hold.shares import TenantShares
from inflight_gateway.ledger import Ledger
from inflight_gateway.pick.picker import Picker
from inflight_gateway.types import Pick, Refusal, RequestView, ServiceConfig, ServiceKey

RETRY_AFTER_S = 5
"""Told to clients whose request waited in vain: by then a replica may have become free or ready."""


class Start(NamedTuple):
    """Attributes: held_s: seconds that the request waited."""

    pick: Pick
    held_s: float


@dataclass(slots=True, eq=False)
class _Waiting:
    """Attributes: allowed: addresses that another gateway allows; empty: all."""

    outcome: asyncio.Future[Start | Refusal]
    since: float
    allowed: Collection[str]


class Dispatcher:
    """Every request passes through the hold queue, also where a replica is free: so none overtakes those that wait.

    Request ids must be unique here: that of a client is not, see `Exchange`.

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

    def place(
        self, request: RequestView, config: ServiceConfig, allowed: Collection[str] = ()
    ) -> Refusal | asyncio.Future[Start | Refusal]:
        """The future is done already where a replica can start the request now. `end` must follow, whatever happens."""
        now = self._clock()
        self._ledger.touch(request.service, now)
        refusal = self._holds.offer(request, config, now)
        if refusal is not None:
            return refusal
        self._shares.arrived(request, config, now)
        outcome: asyncio.Future[Start | Refusal] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = _Waiting(outcome, now, allowed)
        self.release(request.service)
        self._changed()
        return outcome

    def end(self, request_id: str, service: ServiceKey) -> None:
        """The request's stream has ended, or its client left while it waited."""
        if self._waiting.pop(request_id, None) is not None:
            self._holds.remove(request_id)
        self._ledger.end(request_id, self._clock())
        self._shares.ended(request_id)
        self.release(service)
        self._changed()

    def release(self, service: ServiceKey | None = None) -> None:
        """Starts what can start now. `service`: only its requests; None: those of all services."""
        now = self._clock()
        for request, pick in self._holds.release(now, self._can_start, service):
            waiting = self._waiting.pop(request.request_id)
            _settle(waiting.outcome, Start(pick, now - waiting.since))

    def expire(self) -> None:
        """Refuses those that have waited as long as they may."""
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
        """Refuses what waits for services that are gone, and starts what new endpoints can take."""
        for key in change.services - self._catalog.services.keys():
            self._shares.forget(key)
            for request in self._holds.forget(key):
                self._refuse(request, Refusal(404, "service_not_found", f"{key} was deleted"))
        for key in change.services | change.endpoints:
            self.release(key)

    def _can_start(self, request: RequestView) -> Pick | None:
        config = self._catalog.services.get(request.service)
        waiting = self._waiting.get(request.request_id)
        if config is None or waiting is None:
            return None
        now = self._clock()
        loads = self._ledger.loads(request.service, request, now)
        if waiting.allowed:
            loads = [load for load in loads if load.endpoint.address in waiting.allowed]
        pick = self._picker.pick(request, config, loads, now, above_share=self._shares.above(request, now))
        if pick is not None:
            self._ledger.begin(request, pick, now)
            self._shares.started(request)
        return pick

    def _refuse(self, request: RequestView, refusal: Refusal) -> None:
        waiting = self._waiting.pop(request.request_id, None)
        if waiting is not None:
            _settle(waiting.outcome, refusal)
        self._changed()


def _settle(outcome: asyncio.Future[Start | Refusal], result: Start | Refusal) -> None:
    """Unless the client has just left: then its stream's end follows."""
    if not outcome.done():
        outcome.set_result(result)

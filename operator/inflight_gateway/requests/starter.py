"""Picks for the heads of the hold queues, in the accounts of requests at replicas."""

from __future__ import annotations

import logging
from collections.abc import Collection

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger, Part
from inflight_gateway.hold.shares import TenantShares
from inflight_gateway.pick.apart import LEAST_SAVED, Traffic, Way, handed_over, in_time, pays, saves
from inflight_gateway.pick.late_binding import slots_worth
from inflight_gateway.pick.picker import Picker
from inflight_gateway.types import Endpoint, Pick, RequestView, ServiceConfig, answering

_log = logging.getLogger(__name__)

FAULT_LOG_S = 60.0
"""Minimum seconds between two log lines about failed picks."""


class Starter:
    """Picks replicas, and counts the requests that are sent to them in the ledger and in their tenants' shares."""

    def __init__(self, catalog: Catalog, picker: Picker, ledger: Ledger) -> None:
        self._catalog = catalog
        self._picker = picker
        self._ledger = ledger
        self.shares = TenantShares()
        self._fault_logged = float("-inf")

    def start(self, view: RequestView, allowed: Collection[str], now: float, kept_free: float = 0.0) -> Pick | None:
        """Picks replicas for a request; None: it has to wait.

        Args:
            allowed: addresses that another gateway allows; empty: all.
            kept_free: see `Picker.pick`; ignored with `allowed`, whose requests are not held.
        """
        config = self._catalog.services.get(view.service)
        if config is None:
            return None
        way: Way | None = None
        try:
            way = self._pick(config, view, allowed, now, kept_free)
            pick = None if way is None else way.pick
        except Exception:
            # A gateway bug at the head of a queue would block the whole service, and end this process.
            self._log_fault(view.service, now)
            pick = self.least_requests(config, allowed or None)
        if pick is None and allowed:
            # Holding the request would block all others of the service, which other replicas could start.
            pick = self.least_requests(config, allowed)
        if pick is not None:
            size = view.choices
            if way is not None:
                size = slots_worth(way.load, view.prompt_tokens - pick.cached_tokens, view.choices)
            self._begin(view, pick, size, now)
        return pick

    def _pick(
        self, config: ServiceConfig, view: RequestView, allowed: Collection[str], now: float, kept_free: float
    ) -> Way | None:
        """Picks among the replicas that answer, the prefill set, or both as one set. A request that the prefill set
        should begin, and can soon, has to wait for it."""
        rest = allowed, now, kept_free
        if config.apart == "Off":
            return self._pick_of(config, view, "answering", *rest)
        sets, first = self._ledger.sets(config.key), view.attempt == 1
        two = bool(sets.prefill and sets.answering and config.continuation and not allowed)
        if two and config.apart == "Fixed":
            way = self._pick_of(config, view, "prefill" if first else "answering", *rest)
            return handed_over(way) if first and way is not None else way
        if two and view.handed_over:
            return self._pick_of(config, view, "answering", *rest)
        way = self._pick_of(config, view, "every", *rest)
        if not (two and first) or way is None:
            return way
        traffic = Traffic(*self._ledger.flow(config.key, now), len(sets.every), len(sets.answering))
        if way.load.endpoint.prefill:
            here = self._pick_of(config, view, "answering", *rest)
            if here is None or not pays(view, config, self._with_share(way, now), self._with_share(here, now), traffic):
                return way
            return handed_over(way)
        if saves(view, config, way, way, traffic) <= LEAST_SAVED:
            return way
        there = self._pick_of(config, view, "prefill", *rest)
        if not in_time(view, config, there or way, now):
            return way
        return there and handed_over(there)

    def _with_share(self, way: Way, now: float) -> Way:
        return way._replace(prefill_share=self._ledger.prefill_share(way.load.endpoint.address, now))

    def _pick_of(
        self,
        config: ServiceConfig,
        view: RequestView,
        part: Part,
        allowed: Collection[str],
        now: float,
        kept_free: float,
    ) -> Way | None:
        above = self.shares.above(view, now)
        below, claimed = self.shares.below(view, now), self.shares.claimed(view.service, now)
        loads, replicas = self._ledger.candidates(
            *(config, view, now), above=above, claimed=claimed, allowed=allowed, part=part
        )
        pick = self._picker.pick(
            *(view, config, loads, now),
            replicas=replicas,
            above_share=above,
            below_share=below,
            claimed=claimed,
            kept_free=0.0 if allowed else kept_free,
        )
        if pick is None:
            return None
        return Way(pick, next(load for load in loads if load.endpoint == pick.endpoints[0]))

    def started_alone(self, view: RequestView, address: str, now: float) -> None:
        """Counts a request that a relay sent to a replica without a pick."""
        endpoint = next((one for one in self._catalog.endpoints_of(view.service) if one.address == address), None)
        if endpoint is not None:
            self._begin(view, Pick((endpoint,), "alone"), 1, now)

    def moved(self, request_id: str, address: str, now: float) -> bool:
        """Moves a request that is at another replica than the first picked one; returns whether it is."""
        return self._ledger.move(request_id, address, now)

    def ended(self, request_id: str, now: float) -> None:
        """Removes a request that is no longer at a replica, if it was."""
        self._ledger.end(request_id, now)
        self.shares.ended(request_id)

    def allowed(self, service: ServiceKey, allowed: Collection[str]) -> list[Endpoint]:
        """Returns the endpoints with these addresses."""
        return [one for one in self._catalog.endpoints_of(service) if one.address in allowed]

    def least_requests(self, config: ServiceConfig, allowed: Collection[str] | None) -> Pick | None:
        """Picks by least requests, without late binding; None: there is no endpoint. Args: allowed: None: all that
        answer requests."""
        if allowed is None:
            endpoints = [*answering(self._catalog.endpoints_of(config.key), config.apart)]
        else:
            endpoints = self.allowed(config.key, allowed)
        endpoints.sort(key=lambda endpoint: self._ledger.in_flight(endpoint.address))
        return Pick(tuple(endpoints[: config.max_attempts]), "least-requests") if endpoints else None

    def _begin(self, view: RequestView, pick: Pick, size: int, now: float) -> None:
        self._ledger.begin(view, pick, now)
        self.shares.started(view, size)

    def _log_fault(self, service: ServiceKey, now: float) -> None:
        if now >= self._fault_logged + FAULT_LOG_S:
            self._fault_logged = now
            _log.exception("picking for %s failed: by least requests for now", service)

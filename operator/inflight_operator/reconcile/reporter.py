"""Writes status and events of a round to the API server: the status if due, then an event for each transition."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest.keys import ServiceKey
from inflight_operator.api.types import MAX_DECISIONS, Decision, InferenceServiceStatus, ServiceRecord
from inflight_operator.backoff import pause
from inflight_operator.clock import Clock
from inflight_operator.observe.cache import ClusterCache
from inflight_operator.reconcile.news import is_due
from inflight_operator.reconcile.plan import Outcome, Plan
from inflight_operator.reconcile.report import Event, EventType, build_status, events_of, recorded
from inflight_operator.reconcile.snapshot import Snapshot

logger = logging.getLogger(__name__)


class ReportApi(Protocol):
    """The methods in use of `KubeApi`."""

    async def patch_status(self, service: ServiceRecord, status: dict[str, Any]) -> dict[str, Any] | None: ...

    async def event(self, service: ServiceRecord, type: EventType, reason: str, message: str) -> None: ...


@dataclass(slots=True)
class Reported:
    """State of the reporter for one service.

    Attributes:
        at: when its status was last written.
        decisions: that are in no status yet.
        failures: consecutive failed writes.
        again: time of the next attempt.
    """

    at: float = float("-inf")
    decisions: tuple[Decision, ...] = ()
    failures: int = 0
    again: float = float("-inf")


class Reporter:
    def __init__(self, api: ReportApi, cache: ClusterCache, clock: Clock) -> None:
        self._clock = clock
        self._api = api
        self._cache = cache

    async def report(
        self, key: ServiceKey, snapshot: Snapshot, plan: Plan, outcome: Outcome, reported: Reported
    ) -> bool:
        """Whether all due writes succeeded."""
        made = (recorded(decision, snapshot.at) for decision in plan.decisions)
        reported.decisions = (*reported.decisions, *made)[-MAX_DECISIONS:]
        status = build_status(snapshot, plan, outcome, reported.decisions)
        if not is_due(snapshot.service.status, status, self._clock.steady() - reported.at):
            return True
        return await self.write(key, snapshot.service, status, reported)

    async def write(
        self, key: ServiceKey, service: ServiceRecord, status: InferenceServiceStatus, reported: Reported
    ) -> bool:
        """Writes a status and the events of its changes; returns whether the status was accepted."""
        if self._clock.steady() < reported.again:
            return False
        try:
            live = await self._api.patch_status(service, status.to_dict())
        except KubeApiError as error:
            reported.failures += 1
            reported.again = self._clock.steady() + pause(reported.failures)
            logger.warning("%s: the status was not taken: %s", key, error)
            return False
        if live is not None:
            self._cache.put(service.kind, live)
        decisions, reported.decisions = reported.decisions, ()
        reported.at, reported.failures = self._clock.steady(), 0
        for event in events_of(service.status, status, decisions):
            await self._event(key, service, event)
        return True

    async def _event(self, key: ServiceKey, service: ServiceRecord, event: Event) -> None:
        """The status already contains the change, so a rejected event does not fail the round."""
        try:
            await self._api.event(service, event.type, event.reason, event.message)
        except KubeApiError as error:
            logger.warning("%s: event %s was not taken: %s", key, event.reason, error)

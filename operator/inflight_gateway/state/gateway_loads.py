"""In-flight and held requests of this gateway, for the state stream and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.state.load import SentLoad, ServiceLoad


class GatewayLoads:
    """A `LoadSource`. Args: clock: seconds, monotonic."""

    def __init__(self, catalog: Catalog, holds: HoldQueue, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._catalog = catalog
        self._holds = holds
        self._ledger = ledger
        self._clock = clock

    def service_loads(self) -> Mapping[ServiceKey, ServiceLoad]:
        now = self._clock()
        return {key: self._load(key, now) for key in self._catalog.services}

    def sent_loads(self) -> Mapping[str, SentLoad]:
        """`sent_tokens` are all since this gateway started: `Ledger.peer` counts differences."""
        return {address: SentLoad(*sent) for address, sent in self._ledger.sent().items()}

    def _load(self, key: ServiceKey, now: float) -> ServiceLoad:
        waiting = self._holds.waiting(key, now)
        in_flight, idle_s = self._ledger.service(key, now)
        return ServiceLoad(waiting.requests, waiting.prompt_tokens, waiting.oldest_s, in_flight, idle_s)

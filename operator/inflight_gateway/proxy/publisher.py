"""Keeps Envoy's configuration in sync with the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.proxy.ads import Ads
from inflight_gateway.proxy.snapshot import ENDPOINTS, Fixed, Snapshot, engine_endpoints, snapshot


class Publisher:
    """Publishes changes of the catalog. Several changes in one turn of the event loop become one update.

    Args:
        refused: called with the type URL of a rejected version.
        endpoints_taken: called when Envoy has accepted new endpoints.
    """

    def __init__(
        self, fixed: Fixed, catalog: Catalog, refused: Callable[[str], None], endpoints_taken: Callable[[], None]
    ) -> None:
        self._fixed = fixed
        self._catalog = catalog
        self._endpoints_taken = endpoints_taken
        self._addresses: dict[str, frozenset[str]] = {}
        """Version of the endpoints -> all their addresses, for each version since the last one that Envoy accepted."""
        self._known: frozenset[str] | None = None
        self._services_changed = False
        self._scheduled = False
        self.ads = Ads(self._noted(self._whole()), self._taken, lambda type_url, _: refused(type_url))

    def knows(self, address: str) -> bool:
        """Returns whether Envoy can send a request to this address. It cannot yet send to an endpoint that was just
        added, and would respond 503. If this picker configures no Envoy, all endpoints count as known."""
        return self._known is None or address in self._known

    def catalog_changed(self, change: Change) -> None:
        if not (change.services or change.endpoints):
            return
        self._services_changed |= bool(change.services)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        if self._services_changed:
            new = self._whole()
        else:
            new = {**self.ads.snapshot, ENDPOINTS: engine_endpoints(self._catalog.services, self._catalog.endpoints)}
        self._scheduled = self._services_changed = False
        self.ads.publish(self._noted(new))

    def _noted(self, new: Snapshot) -> Snapshot:
        self._addresses[new[ENDPOINTS].version] = self._catalog.addresses()
        return new

    def _taken(self, type_url: str, version: str) -> None:
        if type_url != ENDPOINTS:
            return
        self._known = self._addresses.get(version, frozenset())
        newest = self.ads.snapshot[ENDPOINTS].version
        self._addresses = {version: self._known, newest: self._addresses[newest]}
        self._endpoints_taken()

    def _whole(self) -> Snapshot:
        catalog = self._catalog
        hosts = {key: (f"{key.name}.{key.namespace}", f"{key.name}.{key.namespace}.svc") for key in catalog.services}
        return snapshot(self._fixed, catalog.services, hosts, catalog.endpoints)

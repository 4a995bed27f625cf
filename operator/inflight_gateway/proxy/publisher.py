"""Keeps Envoy's configuration at what the catalog says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inflight_gateway.catalog import Catalog, Change
from inflight_gateway.proxy.ads import Ads
from inflight_gateway.proxy.snapshot import ENDPOINTS, Fixed, Snapshot, engine_endpoints, snapshot


class Publisher:
    """Several changes of one turn of the event loop become one update.

    Args:
        refused: called with the type URL of what Envoy refuses.
    """

    def __init__(self, fixed: Fixed, catalog: Catalog, refused: Callable[[str], None]) -> None:
        self._fixed = fixed
        self._catalog = catalog
        self._services_changed = False
        self._scheduled = False
        self.ads = Ads(self._whole(), refused)

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
        self.ads.publish(new)

    def _whole(self) -> Snapshot:
        catalog = self._catalog
        hosts = {key: catalog.hosts(key) for key in catalog.services}
        return snapshot(self._fixed, catalog.services, hosts, catalog.endpoints)

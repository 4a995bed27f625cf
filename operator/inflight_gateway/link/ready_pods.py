"""The ready gateway pods, as a picker sees them, and the owners of services among them."""

from __future__ import annotations

from collections.abc import Collection

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.link.ownership import Owners
from inflight_gateway.link.wire import Gateways
from inflight_gateway.types import GatewayPod


class ReadyPods:
    """Pods that own services: the ready ones, or this one alone while none is known.

    Args:
        catalog: services and their engines.

    Attributes:
        own: name of this pod. pods: sorted by name.
    """

    def __init__(self, own: str, catalog: Catalog) -> None:
        self.own = own
        self.pods: tuple[GatewayPod, ...] = (GatewayPod(own, ""),)
        self._catalog = catalog
        self._ready: Collection[GatewayPod] = ()
        self._draining = False
        self._owners: Owners | None = None
        self._sizes_changed = False
        catalog.subscribe(self._changed)

    def set(self, ready: Collection[GatewayPod]) -> None:
        """Sets the ready pods, with this one if it is."""
        self._ready = ready
        self._choose()

    def drain(self) -> None:
        """Leaves all services to the other pods, if there is one."""
        self._draining = True
        self._choose()

    def refresh(self) -> None:
        """Applies changes of the services' sizes: those of pods apply at once. Called about once a second."""
        if self._sizes_changed:
            self._sizes_changed, self._owners = False, None

    def message(self, relays: int) -> Gateways:
        """Returns the message to this pod's relays. Args: relays: their number."""
        return Gateways(self.own, self.pods, relays)

    def owner(self, service: ServiceKey, without: Collection[str] = ()) -> str:
        """Returns the pod that owns a service. Args: without: pods that do not count."""
        if len(self.pods) == 1:
            return self.own if self.pods[0].name in without else self.pods[0].name
        if self._owners is None:
            self._owners = Owners(self._catalog.engine_counts(), [one.name for one in self.pods])
        return self._owners.owner(service, without) or self.own

    def _choose(self) -> None:
        ready = sorted(one for one in self._ready if not (self._draining and one.name == self.own))
        self.pods = tuple(ready) or (GatewayPod(self.own, ""),)
        self._owners = None

    def _changed(self, change: Change) -> None:
        self._sizes_changed = self._sizes_changed or bool(change.services or change.endpoints)

"""Data source of the live view."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inflight_kubectl.access.cluster import Cluster
from inflight_kubectl.access.events import Event, pod_events
from inflight_kubectl.access.pods import Pod
from inflight_kubectl.access.resources import Service
from inflight_kubectl.engines.engine_metrics import EngineReader, Tiers, service_tiers
from inflight_kubectl.engines.feed import ServiceFeed, View
from inflight_kubectl.engines.gateway_view import GatewayView, gateway_view


class Source:
    """The data of a cluster.

    Attributes:
        context: name of the context; empty inside a pod.
        scope: the namespace that is shown; None for all.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.context = cluster.context
        self.scope = cluster.scope

    def follow(self, changed: Callable[[View], None]) -> ServiceFeed:
        """Returns a feed of the services, not started yet."""
        return ServiceFeed(self._cluster, changed)

    def pods(self, service: Service) -> list[Pod]:
        """Returns the pods of a service.

        Raises:
            Problem: forbidden, or no answer.
        """
        return self._cluster.pods(service)

    def gateway(self, service: Service) -> GatewayView | None:
        """Returns the gateway's reports on a service; None if it is not behind the gateway."""
        return gateway_view(self._cluster, service)

    def tiers(self, service: Service, pods: Sequence[Pod]) -> Tiers | None:
        """Returns the tiers of the KV cache of a service's engines; None if it has none."""
        return service_tiers(self._cluster, service, pods)

    def reader(self) -> EngineReader:
        """Returns a reader of engines, which the caller closes."""
        return EngineReader(self._cluster)

    def events(self, service: Service, pods: Sequence[Pod]) -> list[Event]:
        """Returns the events of a service's pods.

        Raises:
            Problem: forbidden, or no answer.
        """
        return pod_events(self._cluster, service, pods)

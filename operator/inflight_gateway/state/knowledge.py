"""Metrics of the gateway's view: services, engines, other gateway pods, and reachability of the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.scrape.samples import Samples
from inflight_gateway.state.peers import Peers

_SERVICE = ("namespace", "service")


class Knowledge(Collector):
    """Args: problems: currently failing calls to the Kubernetes API."""

    def __init__(self, catalog: Catalog, samples: Samples, peers: Peers, problems: Callable[[], Sequence[str]]) -> None:
        self._catalog = catalog
        self._samples = samples
        self._peers = peers
        self._problems = problems

    def describe(self) -> list[Metric]:
        """No samples before the services are known."""
        return []

    def collect(self) -> Iterator[Metric]:
        endpoints = GaugeMetricFamily(
            "inflight_gateway_endpoints", "Engines that Kubernetes says take requests.", labels=_SERVICE
        )
        unreachable = GaugeMetricFamily(
            "inflight_gateway_endpoints_unreachable",
            "Those of them that this gateway cannot reach or that drain; they get requests only where no other is.",
            labels=_SERVICE,
        )
        unmeasured = GaugeMetricFamily(
            "inflight_gateway_endpoints_unmeasured",
            "Engines whose last scrape failed: requests are spread over them without their metrics.",
            labels=_SERVICE,
        )
        for key in self._catalog.services:
            addresses = [endpoint.address for endpoint in self._catalog.endpoints_of(key)]
            endpoints.add_metric(key, len(addresses))
            unreachable.add_metric(key, sum(not self._samples.reachable(one) for one in addresses))
            unmeasured.add_metric(key, sum(bool(self._samples.error(one)) for one in addresses))
        yield from (endpoints, unreachable, unmeasured)
        yield GaugeMetricFamily(
            "inflight_gateway_peers", "Other gateway pods that this one hears from.", value=len(self._peers.live())
        )
        yield GaugeMetricFamily(
            "inflight_gateway_kubernetes_watches_failing",
            "Lists and watches of the Kubernetes API that fail now; what is known stays in force.",
            value=len(self._problems()),
        )

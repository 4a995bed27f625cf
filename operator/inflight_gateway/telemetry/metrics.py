"""Metrics of the picker. Metrics of single tenants are in `tenants/usage.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.link.ready_pods import ReadyPods
from inflight_gateway.link.server import RelayLinks
from inflight_gateway.scrape.samples import Samples
from inflight_gateway.state.load import ServiceLoad
from inflight_gateway.types import APPROXIMATE, ENGINES_DIED_CODE, Finished, Pick, RequestView

_Metric = TypeVar("_Metric", Counter, Histogram)

_SERVICE = ("namespace", "service")

_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, 120)
"""Histogram buckets in seconds, finest around the targets that services set."""

_DURATION = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_HELD = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)
_DECISION = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


class Metrics:
    """The picker's metrics. Args: exists: returns whether a service exists; events of requests may come after their
    service was deleted.

    Attributes:
        registry: registry with all metrics.
    """

    def __init__(self, exists: Callable[[ServiceKey], bool] = lambda _: True) -> None:
        self._exists = exists
        # Finding a child by its labels takes longer than counting.
        self._child = cache(_child)
        self.registry = registry = CollectorRegistry()
        self._of_services: list[Counter | Histogram] = []

        def counter(name: str, text: str, *labels: str) -> Counter:
            metric = Counter(name, text, (*_SERVICE, *labels), registry=registry)
            self._of_services.append(metric)
            return metric

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            metric = Histogram(name, text, _SERVICE, buckets=buckets, registry=registry)
            self._of_services.append(metric)
            return metric

        self._requests = counter(
            "inflight_gateway_requests",
            "Requests that ended, by the status that the client got; 0: the client left before one; unknown: no relay"
            " reported it, because it died.",
            "status",
        )
        self._first_token = histogram(
            "inflight_gateway_time_to_first_token_seconds",
            "From a request's arrival at the relay to the first token that the client got, waiting and tries included.",
            _FIRST_TOKEN,
        )
        self._duration = histogram(
            "inflight_gateway_request_duration_seconds",
            "From a request's arrival at the relay to the end of its answer.",
            _DURATION,
        )
        self._gap = histogram(
            "inflight_gateway_longest_gap_seconds",
            "Longest time between two writes of a stream to its client, after the first token.",
            _DURATION,
        )
        self._attempts = counter(
            "inflight_gateway_attempts",
            "Replicas that requests were sent to, one for each try; requests that ended.",
        )
        self._continuations = counter(
            "inflight_gateway_continuations",
            "Times that an answer went on at another replica after tokens had been sent.",
        )
        self._held = histogram(
            "inflight_gateway_held_seconds",
            "Time that requests waited at the gateway before they were sent to a replica.",
            _HELD,
        )
        self._picks = counter("inflight_gateway_picks", "Picks of a replica, by reason.", "reason")
        self._prompt_tokens = counter(
            "inflight_gateway_prompt_tokens",
            "Prompt tokens of requests that ended, as engines counted them.",
        )
        self._cached_predicted = counter(
            "inflight_gateway_cached_tokens_predicted",
            "Prompt tokens that the picked replica's prefix cache should have held, estimated from characters; index:"
            " exact where its KV cache events say what it holds, else approximate.",
            "index",
        )
        self._cached_found = counter(
            "inflight_gateway_cached_tokens_found",
            "Prompt tokens that engines found in their prefix caches; index: that of the request's last pick.",
            "index",
        )
        self._engines_died = counter(
            "inflight_gateway_suspect_requests",
            "Requests that were not tried again because two engines died before the first token of an attempt.",
        )
        self._refusals = counter(
            "inflight_gateway_refusals",
            "Errors of the gateway itself, by code; without a service: it was not found.",
            "code",
        )
        self._decision = Histogram(
            "inflight_gateway_pick_duration_seconds",
            "Time of the picker for a request's key, limits and pick, waiting not included.",
            buckets=_DECISION,
            registry=registry,
        )

    def page(self) -> bytes:
        """Returns the page in Prometheus' text format."""
        return generate_latest(self.registry)

    def watch_loads(self, loads: Callable[[], Mapping[ServiceKey, ServiceLoad]]) -> None:
        """Adds gauges of held and in-flight requests, computed on each scrape."""
        self.registry.register(_Loads(loads))

    def picked(self, request: RequestView, pick: Pick, held_s: float, index: str = APPROXIMATE) -> None:
        if not self._exists(request.service):
            return
        self._child(self._picks, *request.service, pick.reason).inc()
        if not request.handed_over:  # the engine that began with the prompt says what it found
            self._add(self._cached_predicted, request.service, pick.cached_tokens, index)
        self._child(self._held, *request.service).observe(held_s)

    def refused(self, service: ServiceKey | None, code: str) -> None:
        if service is None or self._exists(service):
            self._child(self._refusals, *(service or ("", "")), code).inc()

    def finished(self, finished: Finished, index: str = APPROXIMATE) -> None:
        service = finished.service
        if service.name and not self._exists(service):
            return
        self._child(self._requests, *service, "unknown" if finished.status is None else str(finished.status)).inc()
        self._add(self._attempts, service, len(finished.endpoints))
        self._add(self._continuations, service, finished.continuations)
        self._add(self._prompt_tokens, service, finished.prompt_tokens)
        self._add(self._cached_found, service, finished.cached_tokens, index)
        if finished.error == ENGINES_DIED_CODE:
            self._child(self._engines_died, *service).inc()
        if finished.ttft_s is not None:
            self._child(self._first_token, *service).observe(finished.ttft_s)
            self._child(self._gap, *service).observe(finished.longest_gap_s)
        if finished.status == 200 and finished.e2e_s:
            self._child(self._duration, *service).observe(finished.e2e_s)

    def forget(self, service: ServiceKey) -> None:
        """Removes a deleted service."""
        self._child.cache_clear()
        for metric in self._of_services:
            metric.remove_by_labels(dict(zip(_SERVICE, service, strict=True)))

    def decided(self, seconds: float) -> None:
        self._decision.observe(seconds)

    def _add(self, counter: Counter, service: ServiceKey, amount: int, *labels: str) -> None:
        child = self._child(counter, *service, *labels)
        if amount:
            child.inc(amount)


def _child(metric: _Metric, *labels: str) -> _Metric:
    return metric.labels(*labels)


class _Loads(Collector):
    def __init__(self, loads: Callable[[], Mapping[ServiceKey, ServiceLoad]]) -> None:
        self._loads = loads

    def collect(self) -> Iterator[Metric]:
        loads = self._loads()
        for name, text, field in (
            ("inflight_gateway_held_requests", "Requests that wait at the gateway.", "held"),
            ("inflight_gateway_oldest_held_seconds", "Time that the first of them has waited.", "oldest_held_s"),
            ("inflight_gateway_requests_in_flight", "Requests at replicas that have not ended.", "in_flight"),
        ):
            yield _gauges(name, text, {service: getattr(load, field) for service, load in loads.items()})


class IndexCollector(Collector):
    """The picker's knowledge of prefix caches. Args: states: numbers of engines with KV cache events, by service
    and state."""

    def __init__(self, states: Callable[[], Mapping[tuple[ServiceKey, str], int]]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "inflight_gateway_kv_event_engines",
            "Engines of services with KV cache events that this picker owns, by what it knows of their prefix caches:"
            " exact, or the reason why they are approximated.",
            labels=(*_SERVICE, "state"),
        )
        for (service, state), number in self._states().items():
            family.add_metric((*service, state), number)
        yield family


class DiscoveryCollector(Collector):
    """The picker's view: services, engines, gateway pods and their relays, and reachability of the API server.

    Args: problems: currently failing calls to the Kubernetes API.
    """

    def __init__(
        self,
        catalog: Catalog,
        samples: Samples,
        pods: ReadyPods,
        links: RelayLinks,
        problems: Callable[[], Sequence[str]],
    ) -> None:
        self._catalog = catalog
        self._samples = samples
        self._pods = pods
        self._links = links
        self._problems = problems

    def collect(self) -> Iterator[Metric]:
        endpoints = {key: [one.address for one in self._catalog.endpoints_of(key)] for key in self._catalog.services}
        yield _gauges(
            "inflight_gateway_endpoints",
            "Engines that Kubernetes says take requests.",
            {key: len(addresses) for key, addresses in endpoints.items()},
        )
        yield _gauges(
            "inflight_gateway_endpoints_unreachable",
            "Those of them that this gateway cannot reach or that drain; they get requests only where no other is.",
            {key: sum(not self._samples.reachable(one) for one in addresses) for key, addresses in endpoints.items()},
        )
        yield _gauges(
            "inflight_gateway_endpoints_unmeasured",
            "Engines whose last scrape failed: requests are spread over them without their metrics.",
            {key: sum(bool(self._samples.error(one)) for one in addresses) for key, addresses in endpoints.items()},
        )
        yield GaugeMetricFamily(
            "inflight_gateway_pods",
            "Ready gateway pods that this one knows; each service belongs to one.",
            len(self._pods.pods),
        )
        yield GaugeMetricFamily(
            "inflight_gateway_remote_relays", "Relays of other pods connected to this one.", len(self._links.remote)
        )
        yield GaugeMetricFamily(
            "inflight_gateway_kubernetes_watches_failing",
            "Lists and watches of the Kubernetes API that fail now; what is known stays in force.",
            value=len(self._problems()),
        )


def _gauges(name: str, text: str, values: Mapping[ServiceKey, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=_SERVICE)
    for service, value in values.items():
        family.add_metric(service, value)
    return family

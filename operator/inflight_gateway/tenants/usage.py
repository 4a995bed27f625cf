"""Usage of each tenant, as metrics. A service's label values are the tenants of its API keys and tokens, at most
`MAX_TENANTS`; all others count together as `other`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.tenants.usage_files import Total

MAX_TENANTS = 200
"""Most values of the label `tenant` for each service."""

OTHER = "other"
ANONYMOUS = "anonymous"
"""Label value of requests to services without API keys."""

LABELS = ("namespace", "service", "tenant")


@dataclass(slots=True)
class Counts:
    """Counters of a tenant at a service. Attributes: refused: refused requests by reason, since the gateway started."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    in_flight: int = 0
    refused: dict[str, int] = field(default_factory=dict)


class Usage(Collector):
    """Counts by tenant; register it at the registry of the gateway's metrics.

    Args:
        malformed_keys: returns the entries of Secrets that are ignored.

    Attributes:
        forgotten: number of services that were removed.
    """

    def __init__(self, malformed_keys: Callable[[], int] = lambda: 0) -> None:
        self._services: dict[ServiceKey, dict[str, Counts]] = {}
        self._malformed_keys = malformed_keys
        self.forgotten = 0

    def label(self, service: ServiceKey, tenant: str) -> str:
        """Returns the label value of an authenticated tenant; empty: the service has no keys."""
        if not tenant:
            return ANONYMOUS
        counts = self._services.get(service, {})
        return tenant if tenant in counts or len(counts) < MAX_TENANTS else OTHER

    def of(self, service: ServiceKey, label: str) -> Counts:
        """Returns the counters of a label value, to add to."""
        return self._services.setdefault(service, {}).setdefault(label, Counts())

    def refused(self, service: ServiceKey, label: str, reason: str) -> None:
        """Counts a request that was rejected before it reached a replica."""
        refused = self.of(service, label).refused
        refused[reason] = refused.get(reason, 0) + 1

    def forget(self, service: ServiceKey) -> None:
        """Removes a deleted service."""
        self._services.pop(service, None)
        self.forgotten += 1

    @property
    def services(self) -> Set[ServiceKey]:
        """Services with counters."""
        return self._services.keys()

    def totals(self) -> list[Total]:
        """Returns the counters, for a checkpoint."""
        return [
            Total(
                service.namespace,
                service.name,
                label,
                counts.requests,
                counts.prompt_tokens,
                counts.cached_tokens,
                counts.completion_tokens,
            )
            for service, tenants in self._services.items()
            for label, counts in tenants.items()
        ]

    def resume(self, total: Total) -> None:
        """Adds counters of before this gateway started."""
        service = ServiceKey(total.namespace, total.service)
        known = total.label in (ANONYMOUS, OTHER)
        counts = self.of(service, total.label if known else self.label(service, total.label))
        counts.requests += total.requests
        counts.prompt_tokens += total.prompt_tokens
        counts.cached_tokens += total.cached_tokens
        counts.completion_tokens += total.completion_tokens

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, from the counters."""
        requests = CounterMetricFamily(
            "inflight_gateway_tenant_requests", "Requests of a tenant that ended, refused ones excluded.", labels=LABELS
        )
        tokens = CounterMetricFamily(
            "inflight_gateway_tenant_tokens",
            "Tokens of a tenant's requests. kind: prompt (cached ones included), cached, completion.",
            labels=(*LABELS, "kind"),
        )
        refused = CounterMetricFamily(
            "inflight_gateway_tenant_refused",
            "Requests refused by the gateway's keys and limits. reason: key, requests, tokens, concurrent_requests.",
            labels=(*LABELS, "reason"),
        )
        in_flight = GaugeMetricFamily(
            "inflight_gateway_tenant_requests_in_flight", "Admitted requests that have not ended.", labels=LABELS
        )
        for service, tenants in self._services.items():
            for tenant, counts in tenants.items():
                labels = (service.namespace, service.name, tenant)
                requests.add_metric(labels, counts.requests)
                in_flight.add_metric(labels, counts.in_flight)
                for kind in ("prompt", "cached", "completion"):
                    tokens.add_metric((*labels, kind), getattr(counts, f"{kind}_tokens"))
                for reason, count in counts.refused.items():
                    refused.add_metric((*labels, reason), count)
        yield requests
        yield tokens
        yield refused
        yield in_flight
        yield GaugeMetricFamily(
            "inflight_gateway_malformed_api_keys",
            "Entries of Secrets with API keys that are ignored because they are malformed; the log names them.",
            value=self._malformed_keys(),
        )

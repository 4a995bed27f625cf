"""Metrics of what the gateway knows."""

from prometheus_client import CollectorRegistry, generate_latest

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.link.ready_pods import ReadyPods
from inflight_gateway.link.server import RelayLinks
from inflight_gateway.scrape.samples import Samples
from inflight_gateway.telemetry.metrics import DiscoveryCollector
from inflight_gateway.types import Endpoint, EngineSample, GatewayPod, ServiceConfig

CHAT = ServiceKey("team", "chat")


def test_endpoints_by_state_pods_and_failing_watches():
    catalog, samples, problems = Catalog(), Samples(), ["GET /api: the API server does not answer"]
    addresses = [f"10.0.0.{number}:8000" for number in range(1, 5)]
    catalog.update(
        services={CHAT: ServiceConfig(CHAT, "u", "chat")}, endpoints={CHAT: [Endpoint(one, one) for one in addresses]}
    )
    samples.keep(addresses)
    samples.scraped(addresses[0], EngineSample(1.0), 1.0)
    samples.scraped(addresses[1], EngineSample(1.0, draining=True), 1.0)
    for now in (97.0, 99.0):
        samples.failed(addresses[2], "refused", connected=False, now=now)
    samples.failed(addresses[3], "HTTP 404", connected=True, now=99.0)
    registry, pods = CollectorRegistry(), ReadyPods("gw-0", catalog)
    pods.set([GatewayPod("gw-0", "10.0.1.0:9005"), GatewayPod("gw-1", "10.0.1.1:9005")])
    registry.register(DiscoveryCollector(catalog, samples, pods, RelayLinks(None, catalog, pods), lambda: problems))
    lines = generate_latest(registry).decode().splitlines()
    labels = '{namespace="team",service="chat"}'
    assert f"inflight_gateway_endpoints{labels} 4.0" in lines
    assert f"inflight_gateway_endpoints_unreachable{labels} 2.0" in lines
    assert f"inflight_gateway_endpoints_unmeasured{labels} 2.0" in lines
    assert "inflight_gateway_pods 2.0" in lines
    assert "inflight_gateway_remote_relays 0.0" in lines
    assert "inflight_gateway_kubernetes_watches_failing 1.0" in lines

"""Metrics of the picker."""

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.types import Endpoint, Finished, Pick, RequestView

SERVICE, GONE = ServiceKey("ns", "chat"), ServiceKey("ns", "gone")


def test_events_after_a_service_was_deleted_do_not_bring_its_labels_back():
    services = {SERVICE, GONE}
    metrics = Metrics(lambda key: key in services)

    def all_events():
        for key in (SERVICE, GONE):
            metrics.picked(RequestView("r", key, 0.0), Pick((Endpoint("10.0.0.1:80", "p"),), "only"), 0.1)
            metrics.refused(key, "no_replica")
            metrics.finished(Finished("r", key, 200, stream=True, ttft_s=0.1, e2e_s=1.0))
        metrics.refused(None, "service_not_found")

    all_events()
    assert 'service="gone"' in metrics.page().decode()
    services.remove(GONE)
    metrics.forget(GONE)
    all_events()
    page = metrics.page().decode()
    assert 'service="gone"' not in page
    assert 'inflight_gateway_picks_total{namespace="ns",reason="only",service="chat"} 2.0' in page
    assert 'inflight_gateway_refusals_total{code="service_not_found",namespace="",service=""} 2.0' in page
    services.add(GONE)
    all_events()
    assert 'inflight_gateway_picks_total{namespace="ns",reason="only",service="gone"} 1.0' in metrics.page().decode()

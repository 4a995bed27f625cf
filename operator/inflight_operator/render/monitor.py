"""The PodMonitor, where the Prometheus operator's API exists."""

from __future__ import annotations

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import ADMIN_PORT_NAME, HTTP_PORT_NAME, METRICS_PORT_NAME, pod_labels
from inflight_operator.api.resolve import engine_type
from inflight_operator.api.types import InferenceService
from inflight_operator.render.metadata import child

POD_MONITOR_API = "monitoring.coreos.com/v1/PodMonitor"
SCRAPE_INTERVAL = "15s"


def pod_monitor(service: InferenceService) -> Manifest:
    """A PodMonitor, not a ServiceMonitor: queue and cache gauges belong to a pod, also while it is not Ready."""
    name = service.metadata.name
    facts = engine_type(service.spec)
    port = HTTP_PORT_NAME if service.spec.engine.serving_metrics else ADMIN_PORT_NAME
    if facts.metrics_port is not None:
        port = METRICS_PORT_NAME
    return {
        **child("monitoring.coreos.com/v1", "PodMonitor", service),
        "spec": {
            "selector": {"matchLabels": pod_labels(name)},
            "podMetricsEndpoints": [
                {
                    "port": port,
                    "path": facts.metrics_path,
                    "interval": SCRAPE_INTERVAL,
                    # With `namespace`, which Prometheus adds, the labels of the operator's own series of a service.
                    "relabelings": [{"targetLabel": "name", "replacement": name}],
                }
            ],
        },
    }

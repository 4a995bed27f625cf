"""The PodMonitor, where the Prometheus operator's API exists."""

from __future__ import annotations

import re

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import (
    ADMIN_PORT_NAME,
    ENGINE_ANNOTATION,
    HTTP_PORT_NAME,
    METRICS_PORT_NAME,
    pod_labels,
)
from inflight_operator.api.resolve import engine_type
from inflight_operator.api.types import InferenceService
from inflight_operator.render.metadata import child

POD_MONITOR_API = "monitoring.coreos.com/v1/PodMonitor"
SCRAPE_INTERVAL = "15s"

_OWN_PATH: Manifest = {
    "sourceLabels": [f"__meta_kubernetes_pod_annotation_{re.sub('[^a-zA-Z0-9_]', '_', ENGINE_ANNOTATION)}"],
    "regex": '.*"metricsPath": "([^"]+)".*',
    "targetLabel": "__metrics_path__",
    "replacement": "$1",
}
"""Relabelling by which a pod has the path of the engine type that it was made with, while its service changes that."""


def pod_monitor(service: InferenceService) -> Manifest:
    """A PodMonitor, not a ServiceMonitor: queue and cache gauges belong to a pod, also while it is not Ready.

    The port goes by name, so each pod has its own number. Pods of an earlier type without a port of that name are not
    scraped.
    """
    name = service.metadata.name
    port = HTTP_PORT_NAME if service.spec.engine.serving_metrics else ADMIN_PORT_NAME
    if engine_type(service.spec).metrics_port is not None:
        port = METRICS_PORT_NAME
    return {
        **child("monitoring.coreos.com/v1", "PodMonitor", service),
        "spec": {
            "selector": {"matchLabels": pod_labels(name)},
            "podMetricsEndpoints": [
                {
                    "port": port,
                    "interval": SCRAPE_INTERVAL,
                    # With `namespace`, which Prometheus adds, the labels of the operator's own series of a service.
                    "relabelings": [{"targetLabel": "name", "replacement": name}, _OWN_PATH],
                }
            ],
        },
    }

"""The Deployment of the service's engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_operator.render.labels import child_metadata, child_names, pod_labels
from inflight_operator.render.plan import Manifest, Settings
from inflight_operator.render.pod import pod_template, startup_limit_seconds

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

_ROLLING_UPDATE = {
    "SurgeFirst": {"maxSurge": 1, "maxUnavailable": 0},
    "ReleaseFirst": {"maxSurge": 0, "maxUnavailable": 1},
}


def deployment(service: InferenceService, replicas: int | None, settings: Settings) -> Manifest:
    """The Deployment; `replicas` None takes `spec.replicas` (scaling.mode External)."""
    name = service.metadata.name
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(service, child_names(name).main),
        "spec": {
            "replicas": service.spec.replicas if replicas is None else replicas,
            "selector": {"matchLabels": pod_labels(name)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": dict(_ROLLING_UPDATE[service.spec.rollout.strategy]),
            },
            "revisionHistoryLimit": 3,
            # Longer than a pod may take to start, or a slow download would count as a failed rollout.
            "progressDeadlineSeconds": startup_limit_seconds(service) + 60,
            "template": pod_template(service, settings),
        },
    }

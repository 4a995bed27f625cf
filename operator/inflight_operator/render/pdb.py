"""The PodDisruptionBudget: node drains take one engine at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import child_names, pod_labels
from inflight_operator.render.metadata import child_metadata

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService


def pod_disruption_budget(service: InferenceService) -> Manifest:
    """At most one pod is evicted at a time.

    `minAvailable` would make a service of one replica block a node drain. A pod that is not Ready serves
    no requests, so it may always be evicted.
    """
    name = service.metadata.name
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(service, child_names(name).main),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": pod_labels(name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }

"""The NetworkPolicy of the service's pods.

In: only the serving port, from anywhere: who calls a service is for its users to say, and calls that change an engine
need the token.

Out: nothing, where the model comes with the image or from a claim: an engine never calls anyone. Models from Hugging
Face are fetched by the pod itself, through whatever mirror or proxy its environment names, so there the way out stays
open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_operator.render.labels import child_metadata, child_names, pod_labels
from inflight_operator.render.plan import Manifest
from inflight_operator.render.service import PORT_NAME

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService


def downloads_model(service: InferenceService) -> bool:
    """Whether the service's pods fetch their model over the network."""
    return service.spec.model.source.startswith("hf://")


def network_policy(service: InferenceService) -> Manifest:
    """The policy; see the module for what it allows and why."""
    name = service.metadata.name
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(service, child_names(name).main),
        "spec": {
            "podSelector": {"matchLabels": pod_labels(name)},
            "policyTypes": ["Ingress"] if downloads_model(service) else ["Ingress", "Egress"],
            "ingress": [{"ports": [{"port": PORT_NAME, "protocol": "TCP"}]}],
        },
    }

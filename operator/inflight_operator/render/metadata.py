"""Metadata of every child."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import API_VERSION, KIND, child_labels

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService


def child_metadata(service: InferenceService, name: str) -> Manifest:
    """Metadata of a child: labels, and the service as its owner so that deleting it deletes the child."""
    return {
        "name": name,
        "namespace": service.metadata.namespace,
        "labels": child_labels(service.metadata.name),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": service.metadata.name,
                "uid": service.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }

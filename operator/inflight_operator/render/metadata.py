"""Kind and metadata of every child."""

from __future__ import annotations

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import API_VERSION, KIND, child_labels, child_names
from inflight_operator.api.types import InferenceService


def child(api_version: str, kind: str, service: InferenceService, name: str | None = None) -> Manifest:
    """Kind and metadata of a child: labels, and the service as its owner so that deleting it deletes the child.

    Args:
        name: name of the child; None takes that of the service's main children.
    """
    metadata = service.metadata
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": metadata.name, "uid": metadata.uid}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name or child_names(metadata.name).main,
            "namespace": metadata.namespace,
            "labels": child_labels(metadata.name),
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
    }

"""Names, labels and owner of every child. The selector never changes: a Deployment's selector is immutable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inflight_operator.api.types import API_VERSION, KIND
from inflight_operator.render.plan import Manifest

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

SERVICE_LABEL = "inflight.dev/service"
APP_NAME = "inflight-engine"


@dataclass(frozen=True, slots=True)
class ChildNames:
    """Names of a service's children; Deployment, Service, PodDisruptionBudget and others carry the service's own."""

    main: str
    limits: str
    admin_token: str
    engines: str
    picker: str


def child_names(name: str) -> ChildNames:
    """The names of the children of the service called `name`."""
    return ChildNames(
        main=name,
        limits=f"{name}-limits",
        admin_token=f"{name}-admin-token",
        engines=f"{name}-engines",
        picker=f"{name}-picker",
    )


def pod_labels(name: str) -> dict[str, str]:
    """The two labels that select the pods of the service called `name`."""
    return {"app.kubernetes.io/name": APP_NAME, SERVICE_LABEL: name}


def selector_string(name: str) -> str:
    """The same as a label selector string, for lists and the scale subresource."""
    return ",".join(f"{key}={value}" for key, value in pod_labels(name).items())


def child_labels(name: str) -> dict[str, str]:
    """Labels of every child, pods included."""
    return {
        **pod_labels(name),
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "inflight",
    }


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

"""Kinds of objects that operator and gateway use, and their paths in the Kubernetes API."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from inflight_base.manifest.names import API_VERSION, KIND, PLURAL

RESOURCES: dict[str, tuple[str, str]] = {
    "ConfigMap": ("v1", "configmaps"),
    "Deployment": ("apps/v1", "deployments"),
    "EndpointSlice": ("discovery.k8s.io/v1", "endpointslices"),
    "Event": ("events.k8s.io/v1", "events"),
    "InferencePool": ("inference.networking.k8s.io/v1", "inferencepools"),
    KIND: (API_VERSION, PLURAL),
    "Job": ("batch/v1", "jobs"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Node": ("v1", "nodes"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "SubjectAccessReview": ("authorization.k8s.io/v1", "subjectaccessreviews"),
    "TokenReview": ("authentication.k8s.io/v1", "tokenreviews"),
}
"""apiVersion and plural of each kind."""


def object_path(
    kind: str, namespace: str | None = None, name: str | None = None, subresource: str | None = None
) -> str:
    """URL path of an object, or of all objects of a kind (in one namespace, or in all).

    Raises:
        KeyError: `kind` is not in `RESOURCES`.
    """
    api_version, plural = RESOURCES[kind]
    parts = ["api" if "/" not in api_version else "apis", *api_version.split("/")]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (plural, name, subresource) if part is not None]
    return "/" + "/".join(quote(part, safe="") for part in parts)


@dataclass(frozen=True, slots=True)
class Selection:
    """Objects of one kind.

    Attributes:
        namespace: None selects all namespaces.
        labels, fields: a label selector and a field selector; empty selects all.
    """

    kind: str
    namespace: str | None = None
    labels: str = ""
    fields: str = ""

    def query(self, **more: str) -> str:
        """Path of the collection with its selectors; empty parameters are left out."""
        parameters = {"labelSelector": self.labels, "fieldSelector": self.fields, **more}
        query = urlencode({name: value for name, value in parameters.items() if value})
        return object_path(self.kind, self.namespace) + (f"?{query}" if query else "")

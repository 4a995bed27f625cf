"""Names for completion: contexts, namespaces, services and API keys. A lookup that fails gives no completions."""

from __future__ import annotations

from inflight_base.kube.kinds import object_path
from inflight_base.manifest.names import KIND
from inflight_kubectl.cluster import Target
from inflight_kubectl.output import Problem

SECONDS = 2.0
"""Timeout of the API server in seconds: the user is waiting for completion."""


def candidates(kind: str, target: Target, incomplete: str) -> list[str]:
    """Returns the names of `contexts`, `namespaces`, `services` or `keys` that begin with `incomplete`."""
    try:
        return [name for name in _names(kind, target) if name.startswith(incomplete)]
    except Problem:
        return []


def _names(kind: str, target: Target) -> list[str]:
    if kind == "contexts":
        from inflight_kubectl.kubeconfig import contexts

        return contexts(target.kubeconfig)
    cluster = target.connect()
    if kind == "keys":
        from inflight_kubectl.key_store import keys_by_secret

        return [one.key_id for those in keys_by_secret(cluster, cluster.services()).values() for one in those]
    path = "/api/v1/namespaces" if kind == "namespaces" else object_path(KIND, cluster.namespace)
    items = cluster.connection.request("GET", path, seconds=SECONDS)["items"]
    return sorted(item["metadata"]["name"] for item in items)

"""The Secrets with API keys, through the API server."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime

from inflight_base.kube.kinds import object_path
from inflight_kubectl.access.api_keys import NewKey, StoredKey, keys_secret, stored_keys
from inflight_kubectl.access.api_problems import ApiProblem
from inflight_kubectl.access.cluster import Cluster, Json
from inflight_kubectl.access.resources import Service

_CONFLICT = 409

PART_OF = {"app.kubernetes.io/part-of": "inflight"}
"""Labels of a Secret that this program creates."""


def add_key(cluster: Cluster, namespace: str, secret: str, made: NewKey) -> bool:
    """Writes a key's hash; other entries stay. Returns whether the Secret was created for it.

    Raises:
        Problem: forbidden, or no answer.
    """
    data = {made.key_id: base64.b64encode(made.value.encode()).decode()}
    if cluster.get(object_path("Secret", namespace, secret)) is None:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": secret, "namespace": namespace, "labels": PART_OF},
            "data": data,
        }
        try:
            cluster.create(object_path("Secret", namespace), body)
        except ApiProblem as problem:
            if problem.status != _CONFLICT:
                raise
        else:
            return True
    cluster.patch(object_path("Secret", namespace, secret), {"data": data})
    return False


def remove_key(cluster: Cluster, namespace: str, secret: str, key_id: str) -> None:
    """Deletes a key's hash.

    Raises:
        Problem: forbidden, or no answer.
    """
    cluster.patch(object_path("Secret", namespace, secret), {"data": {key_id: None}})


def keys_by_secret(cluster: Cluster, services: list[Service]) -> Mapping[str, list[StoredKey]]:
    """The keys in each Secret that the services of one namespace name; empty for a Secret that does not exist.

    Raises:
        Problem: forbidden, or no answer.
    """
    names = sorted({name for service in services if (name := keys_secret(service))})
    return {name: _keys(cluster.get(object_path("Secret", services[0].namespace, name))) for name in names}


def _keys(secret: Json | None) -> list[StoredKey]:
    return stored_keys((secret or {}).get("data") or {}, datetime.now(UTC))

"""Namespaces of runs in the local cluster, which enforce Pod Security `restricted`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tools.localcluster import kubectl

DELETION = "--timeout=5m"


def create_namespace(name: str) -> None:
    """An empty namespace; the one of an earlier run is deleted first."""
    _delete_services(name)
    kubectl("delete", "namespace", name, "--ignore-not-found", "--wait", DELETION)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    kubectl("apply", "-f", "-", input=json.dumps(manifest))


@contextmanager
def temporary_namespace(name: str) -> Iterator[None]:
    """An empty namespace, deleted afterwards with its services."""
    create_namespace(name)
    try:
        yield
    finally:
        _delete_services(name)
        kubectl("delete", "namespace", name, "--wait=false")


def _delete_services(namespace: str) -> None:
    """Delete the pods before their namespace: the namespace controller, once it has seen pods that still run, looks
    again only after half of their grace period."""
    kubectl("-n", namespace, "delete", "inferenceservices", "--all", "--cascade=foreground", DELETION, check=False)

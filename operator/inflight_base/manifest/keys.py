"""Keys of objects in the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any, NamedTuple


class ObjectKey(NamedTuple):
    """Namespace and name of an object. `str` is `NAMESPACE/NAME`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ServiceKey(ObjectKey):
    """The key of an InferenceService."""

    __slots__ = ()


def key_of(manifest: Mapping[str, Any]) -> ObjectKey:
    """Returns the key of a namespaced object. Its strings are interned: thousands of keys repeat them."""
    return ObjectKey(intern(manifest["metadata"]["namespace"]), intern(manifest["metadata"]["name"]))

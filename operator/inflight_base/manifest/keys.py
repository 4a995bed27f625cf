"""Keys of objects in the cluster."""

from __future__ import annotations

from typing import NamedTuple


class ObjectKey(NamedTuple):
    """Namespace and name of an object. `str` is `NAMESPACE/NAME`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ServiceKey(ObjectKey):
    """The key of an InferenceService."""

    __slots__ = ()

"""Keys of objects in the cluster."""

from __future__ import annotations

from typing import NamedTuple


class ServiceKey(NamedTuple):
    """Namespace and name of an InferenceService. `str` is `NAMESPACE/NAME`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

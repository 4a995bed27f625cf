"""Changes of objects, as a reflector reports them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey


class HistoryError(Exception):
    """The API server's resourceVersions went back, as when etcd is restored from a backup: known objects are invalid.
    Raised by a reader of changes; ends its reflector."""


class Changes(NamedTuple):
    """A page of a list, or one event.

    Attributes:
        objects: as they are now; None: deleted. Deletions during an interruption come with the last page of a list.
        version: resourceVersion of the list or event; empty if the cluster no longer has the kind.
        names: of all objects in a list, with its last page.
    """

    objects: Mapping[ObjectKey, Manifest | None]
    version: str
    names: Set[ObjectKey] | None = None

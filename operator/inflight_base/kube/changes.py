"""Changes of objects, as watches and reflectors report them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import NamedTuple

from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ObjectKey


class HistoryError(Exception):
    """The API server's resourceVersions went back, as when etcd is restored from a backup: known objects are invalid.
    Raised by a reader of changes; ends its reflector."""


class Changes(NamedTuple):
    """A page of a list, or one event.

    Attributes:
        objects: the present objects; None: deleted. Deletions during an interruption come with the last page of a list.
        version: resourceVersion of the list or event; empty if the cluster no longer has the kind.
        names: names of all objects in a list, with its last page.
    """

    objects: Mapping[ObjectKey, Manifest | None]
    version: str
    names: Set[ObjectKey] | None = None


class Event(NamedTuple):
    """An event of a watch.

    Attributes:
        type: ADDED, MODIFIED, DELETED or BOOKMARK; OPEN, without an object, once the API server has accepted the watch.
        version: resourceVersion to continue from.
    """

    type: str
    object: Manifest
    version: str


def event_of(action: str, line: bytes) -> Event:
    """The event in a line of a watch.

    Args:
        action: name of the watch in errors.

    Raises:
        KubeApiError: the API server ends the watch. 410: the version is too old, list again.
        ValueError, KeyError, TypeError: the line is no event.
    """
    event = json.loads(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise KubeApiError(action, int(status.get("code", 500)), str(status.get("message", "")))
    return Event(event["type"], event["object"], event["object"]["metadata"]["resourceVersion"])

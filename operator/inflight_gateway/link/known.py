"""Messages about what a picker knows, of bounded sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.link.wire import Known
from inflight_gateway.types import ServiceConfig

MAX_KNOWN_OBJECTS = 256
MAX_KNOWN_BYTES = 2**20
"""Most objects of a `Known`, and most estimated bytes of them unless it has one only: a stream sends answers between
these messages."""

_Item = TypeVar("_Item")


def everything(catalog: Catalog) -> Change:
    """Returns the change from an empty catalog."""
    return Change(
        frozenset(catalog.services),
        frozenset(catalog.endpoints),
        catalog.secret_refs(),
        frozenset(catalog.outside),
        frozenset(catalog.models),
        hosts=True,
    )


def known(catalog: Catalog, change: Change) -> Iterator[Known]:
    """Yields the present state of changed objects in messages of bounded sizes; the last one is `complete`, if the
    catalog is."""
    parts = [Known(hosts=catalog.hosts if change.hosts else None)]
    for configs in _chunks(((key, catalog.services.get(key)) for key in change.services), _service_bytes):
        parts.append(Known(services=configs))
    for listed in _chunks(
        ((key, catalog.endpoints_of(key)) for key in change.endpoints), lambda one: 100 * len(one[1])
    ):
        parts.append(Known(endpoints=listed))
    for data in _chunks(((ref, _entries(catalog, ref)) for ref in change.secrets), _secret_bytes):
        parts.append(Known(secrets=data))
    for flags in _chunks(((key, key in catalog.outside) for key in change.outside), lambda _: 100):
        parts.append(Known(outside=flags))
    for claims in _chunks(((one, catalog.models.get(one, ())) for one in change.models), _list_bytes):
        parts.append(Known(models=claims))
    yield from parts[:-1]
    yield msgspec.structs.replace(parts[-1], complete=catalog.complete)


def _entries(catalog: Catalog, ref: ObjectKey) -> dict[str, bytes] | None:
    data = catalog.secret(ref)
    return None if data is None else dict(data)


def _list_bytes(item: tuple[object, Sequence[object]]) -> int:
    return 100 + 100 * len(item[1])


def _service_bytes(item: tuple[ServiceKey, ServiceConfig | None]) -> int:
    config = item[1]
    return 100 if config is None else 500 + 150 * (len(config.tenants) + len(config.classes))


def _secret_bytes(item: tuple[ObjectKey, dict[str, bytes] | None]) -> int:
    return 100 + sum(len(name) + len(value) for name, value in (item[1] or {}).items())


def _chunks(items: Iterable[_Item], size_of: Callable[[_Item], int]) -> Iterator[tuple[_Item, ...]]:
    """Yields groups of at most `MAX_KNOWN_OBJECTS` items and `MAX_KNOWN_BYTES`, or of one item."""
    group: list[_Item] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if group and (len(group) == MAX_KNOWN_OBJECTS or size + item_size > MAX_KNOWN_BYTES):
            yield tuple(group)
            group, size = [], 0
        group.append(item)
        size += item_size
    if group:
        yield tuple(group)

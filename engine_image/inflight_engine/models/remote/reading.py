"""Begins to read a remote model's weights, also before there is anything to put them in."""

from __future__ import annotations

from inflight_engine.models.remote.snapshot import Snapshot
from inflight_engine.models.remote.stores import PIECE
from inflight_engine.models.remote.stream import Stream
from inflight_engine.models.remote.tensors import StoredTensor, read_tensors, reading_order

_CLOSE_TOGETHER = 4 * PIECE

_begun: dict[str, tuple[dict[str, StoredTensor], Stream]] = {}
"""Readings that nothing has taken yet, by the model's source."""


def read_early(snapshot: Snapshot) -> None:
    """Begin to read the weights of a model that will be loaded: libraries that loading needs take seconds to import.

    Raises:
        ModelSourceError: the store cannot be read, or a file is damaged.
    """
    _begun[snapshot.store.source] = _begin(snapshot)


def start_reading(snapshot: Snapshot, *, ahead: bool) -> tuple[dict[str, StoredTensor], Stream | None]:
    """Return the model's tensors by name, and with `ahead` the stream that reads them."""
    if not ahead:
        return read_tensors(snapshot), None
    return _begun.pop(snapshot.store.source, None) or _begin(snapshot)


def _begin(snapshot: Snapshot) -> tuple[dict[str, StoredTensor], Stream]:
    tensors = read_tensors(snapshot)
    return tensors, Stream(snapshot.store, reading_order(tensors.values(), _CLOSE_TOGETHER))

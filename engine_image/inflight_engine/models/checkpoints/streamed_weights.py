"""Tensors of remote safetensors files."""

from __future__ import annotations

import math
import weakref

import torch

from inflight_engine.models.checkpoints.weight_source import WeightSource
from inflight_engine.models.remote.reading import start_reading
from inflight_engine.models.remote.snapshot import Snapshot
from inflight_engine.models.remote.stream import read_range
from inflight_engine.models.remote.tensors import ITEM_BYTES, StoredTensor

_DTYPES = {
    **{"F64": torch.float64, "I64": torch.int64, "U64": torch.uint64, "F32": torch.float32, "I32": torch.int32},
    **{"U32": torch.uint32, "F16": torch.float16, "BF16": torch.bfloat16, "I16": torch.int16, "U16": torch.uint16},
    **{"I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
}

_KEPT_BYTES = 64 << 10
"""Tensors up to this size may be asked for again: shapes, groups, scales."""


class StreamedWeights(WeightSource):
    """The tensors of a remote model. A tensor's memory is the caller's.

    Args:
        ahead: as in `open_stored`; else each tensor, or the rows asked for, is read when it is asked for.

    Raises:
        ModelSourceError: the store cannot be read, or a file is damaged.
    """

    def __init__(self, snapshot: Snapshot, *, ahead: bool) -> None:
        self._store = snapshot.store
        self._tensors, self._stream = start_reading(snapshot, ahead=ahead)
        self._kept: dict[str, torch.Tensor] = {}
        if self._stream is not None:
            weakref.finalize(self, self._stream.close)

    def get(self, name: str, dim: int = 0, part: range | None = None) -> torch.Tensor:
        if name in self._kept:
            tensor = self._kept[name]
        else:
            stored = self._stored(name)
            data = None if self._stream is None else self._stream.take(stored)
            if data is None and part is not None and dim == 0:
                return self._rows(stored, part)
            if data is None:
                data = read_range(self._store, stored.file, stored.start, stored.end)
            tensor = torch.from_numpy(data).view(_DTYPES[stored.dtype]).view(stored.shape)
            if len(data) <= _KEPT_BYTES:
                self._kept[name] = tensor
        if part is None:
            return tensor
        return tensor.narrow(dim, part.start, len(part))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored(name).shape

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def _rows(self, stored: StoredTensor, rows: range) -> torch.Tensor:
        row_bytes = math.prod(stored.shape[1:]) * ITEM_BYTES[stored.dtype]
        start = stored.start + rows.start * row_bytes
        data = read_range(self._store, stored.file, start, start + len(rows) * row_bytes)
        return torch.from_numpy(data).view(_DTYPES[stored.dtype]).view(len(rows), *stored.shape[1:])

    def _stored(self, name: str) -> StoredTensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise ValueError(f"model source {self._store.source} has no tensor {name}")
        return stored

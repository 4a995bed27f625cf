"""Where each tensor lies in remote safetensors files, and the order in which a model reads them. No torch.

Format: https://huggingface.co/docs/safetensors: 8 bytes with the length of a JSON header, the header, the tensors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from inflight_engine.models.checkpoints.source import ModelSourceError
from inflight_engine.models.remote.snapshot import Snapshot
from inflight_engine.models.remote.stores import CONNECTIONS, RemoteFile

ITEM_BYTES = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1},
}
"""Bytes of an element by the format's name of its type."""

_FIRST_READ = 256 << 10
"""Bytes that are read for a header; one with a thousand tensors has 100 kB."""
_MAX_HEADER = 100_000_000
"""Bytes, the library's own bound."""

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_WITHIN_LAYER = (
    *("input_layernorm", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj"),
    *("post_attention_layernorm", "gate_proj", "up_proj", "down_proj"),
)
"""Modules of a layer in the order in which the decoders read them."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place: bytes `start` to `end` of a file. `dtype` is the format's name of its type."""

    name: str
    file: RemoteFile
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_tensors(snapshot: Snapshot) -> dict[str, StoredTensor]:
    """Read the headers of all files.

    Raises:
        ModelSourceError: a file is damaged or cannot be read.
    """
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        headers = list(pool.map(lambda shard: _read_header(snapshot, shard), snapshot.shards))
    return {tensor.name: tensor for header in headers for tensor in header}


def reading_order(tensors: Iterable[StoredTensor], close_together: int) -> list[StoredTensor]:
    """Order tensors as a decoder reads them: embedding, layers, final norm, head.

    Args:
        close_together: bytes of a layer up to which it is read as it lies in the file, so that few requests suffice.
    """
    ordered: list[StoredTensor] = []
    for _, group in groupby(sorted(tensors, key=_layer), key=_layer):
        layer = sorted(group, key=lambda tensor: (tensor.file.name, tensor.start))
        if sum(tensor.end - tensor.start for tensor in layer) > close_together:
            layer.sort(key=_place_in_layer)
        ordered += layer
    return ordered


def _layer(tensor: StoredTensor) -> tuple[int, int]:
    found = _LAYER.search(tensor.name)
    if found is not None:
        return 1, int(found[1])
    if "embed" in tensor.name:
        return 0, 0
    return (3, 0) if tensor.name.startswith("lm_head") else (2, 0)


def _place_in_layer(tensor: StoredTensor) -> int:
    modules = tensor.name.split(".")
    return next((at for at, module in enumerate(_WITHIN_LAYER) if module in modules), len(_WITHIN_LAYER))


def _read_header(snapshot: Snapshot, file: RemoteFile) -> list[StoredTensor]:
    def damaged(reason: object) -> ModelSourceError:
        return ModelSourceError(f"model source {snapshot.store.source}: {file.name} is damaged: {reason}")

    first = snapshot.store.read(file, 0, min(_FIRST_READ, file.size))
    length = int.from_bytes(first[:8], "little")
    if file.size < 8 or length > min(_MAX_HEADER, file.size - 8):
        raise damaged("its header is longer than the file")
    text = bytes(first[8 : 8 + length])
    if len(text) < length:
        text += bytes(snapshot.store.read(file, 8 + len(text), 8 + length))
    try:
        header: dict[str, dict[str, Any]] = json.loads(text)
        return [_tensor(name, entry, file, 8 + length) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(error) from error


def _tensor(name: str, entry: dict[str, Any], file: RemoteFile, data: int) -> StoredTensor:
    start, end = (data + int(offset) for offset in entry["data_offsets"])
    shape = tuple(map(int, entry["shape"]))
    if entry["dtype"] not in ITEM_BYTES:
        raise ValueError(f"tensor {name} has the type {entry['dtype']}, which is not supported")
    if min(shape, default=0) < 0 or not data <= start <= end <= file.size:
        raise ValueError(f"tensor {name} lies outside of the file")
    if math.prod(shape) * ITEM_BYTES[entry["dtype"]] != end - start:
        raise ValueError(f"tensor {name} has {end - start} bytes, which are not {list(shape)} of {entry['dtype']}")
    return StoredTensor(name, file, entry["dtype"], shape, start, end)

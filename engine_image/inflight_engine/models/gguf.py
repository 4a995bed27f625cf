"""Reading GGUF files: metadata and where each tensor lies. No torch.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 2 and 3, little-endian). The gguf package's
own reader makes a numpy view of every metadata element, which takes seconds for a vocabulary; this one takes a tenth
of a second. Dequantization is the gguf package's.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

MetadataValue: TypeAlias = int | float | bool | str | list[Any]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type -> struct format of one value."""
_STRING, _ARRAY = 8, 9


class GGUFError(ValueError):
    """The file is not a GGUF file this reader understands."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape`: outermost dimension first, as numpy has it. `offset`: bytes from the start of the file."""

    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    path: Path
    metadata: dict[str, MetadataValue]
    tensors: dict[str, TensorInfo]

    def read_tensor(self, name: str) -> npt.NDArray[np.float32]:
        """One tensor, dequantized to float32.

        Raises:
            GGUFError: a quantization the gguf package cannot undo.
        """
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        info = self.tensors[name]
        kind = GGMLQuantizationType(info.ggml_type)
        block_values, block_bytes = GGML_QUANT_SIZES[kind]
        row_bytes = info.shape[-1] // block_values * block_bytes
        rows = math.prod(info.shape[:-1])
        raw = np.fromfile(self.path, np.uint8, rows * row_bytes, offset=info.offset)
        # The package works on 16 rows at a time; 16 rows of a small model are too few to be quick.
        joined = math.gcd(rows, 64)
        try:
            values: npt.NDArray[np.float32] = dequantize(raw.reshape(rows // joined, row_bytes * joined), kind)
        except NotImplementedError as error:
            raise GGUFError(f"{self.path.name}: tensor {name} is quantized as {kind.name}, not supported") from error
        return values.reshape(info.shape)


def read_gguf(path: Path) -> GGUFFile:
    """Read metadata and the tensor table.

    Raises:
        GGUFError: not a GGUF file, or another version.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as blob:
        if blob[:4] != b"GGUF":
            raise GGUFError(f"{path} is not a GGUF file")
        reader = _Reader(blob, 4)
        version = reader.scalar("I")
        if version not in (2, 3):
            raise GGUFError(f"{path} is GGUF version {version}; versions 2 and 3 are supported")
        num_tensors, num_values = reader.scalar("Q"), reader.scalar("Q")
        metadata = {reader.string(): reader.value(reader.scalar("I")) for _ in range(num_values)}
        table = []
        for _ in range(num_tensors):
            name = reader.string()
            shape = tuple(reader.scalar("Q") for _ in range(reader.scalar("I")))[::-1]
            table.append((name, shape, reader.scalar("I"), reader.scalar("Q")))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise GGUFError(f"{path} has general.alignment {alignment!r}, which is not a positive integer")
        start = -(-reader.position // alignment) * alignment
        return GGUFFile(path, metadata, {name: TensorInfo(s, kind, start + at) for name, s, kind, at in table})


class _Reader:
    def __init__(self, blob: mmap.mmap, position: int) -> None:
        self._blob = blob
        self.position = position

    def scalar(self, code: str) -> Any:
        at = self.position
        self.position = at + struct.calcsize(code)
        return struct.unpack_from("<" + code, self._blob, at)[0]

    def string(self) -> str:
        at = self.position + 8
        self.position = at + struct.unpack_from("<Q", self._blob, self.position)[0]
        return self._blob[at : self.position].decode("utf-8", errors="replace")

    def value(self, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            if item == _STRING:
                return [self.string() for _ in range(count)]
            if item == _ARRAY:
                return [self.value(item) for _ in range(count)]
            code = self._code(item)
            at = self.position
            self.position = at + count * struct.calcsize(code)
            return list(struct.unpack_from(f"<{count}{code}", self._blob, at))
        value: MetadataValue = self.scalar(self._code(kind))
        return value

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise GGUFError(f"unknown GGUF value type {kind}")
        return _SCALARS[kind]

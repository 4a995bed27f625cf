"""Reading GGUF files: metadata and where each tensor lies. No torch.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 2 and 3, little-endian). The gguf package's
own reader makes a numpy view of every metadata element, which takes seconds for a vocabulary; this one takes some tens
of milliseconds. Dequantization is the gguf package's.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

MetadataValue: TypeAlias = int | float | bool | str | Sequence[Any]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type -> struct format of one value."""
_STRING, _ARRAY = 8, 9

_BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    30: (1, 2),  # BF16
}
"""GGML type -> values and bytes of a block, of the types that are common."""


_LENGTH = struct.Struct("<Q")


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
    """`content`: all of it, mapped from the file; what writes to it changes this process's copy alone."""

    path: Path
    content: npt.NDArray[np.uint8]
    metadata: dict[str, MetadataValue]
    tensors: dict[str, TensorInfo]

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """One tensor's bytes, a view of `content`.

        Raises:
            GGUFError: a quantization that the gguf package does not know either.
        """
        info = self.tensors[name]
        block_values, block_bytes = _block(info.ggml_type, name, self.path)
        num_bytes = math.prod(info.shape) // block_values * block_bytes
        return self.content[info.offset : info.offset + num_bytes]

    def read_tensor(self, name: str) -> npt.NDArray[np.float32]:
        """One tensor, dequantized to float32 by the gguf package.

        Raises:
            GGUFError: a quantization the gguf package cannot undo.
        """
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        info, raw = self.tensors[name], self.raw(name)
        kind = GGMLQuantizationType(info.ggml_type)
        # The package works on 16 rows at a time; 16 rows of a small model are too few to be quick.
        rows = math.prod(info.shape[:-1])
        joined = math.gcd(rows, 64)
        try:
            values: npt.NDArray[np.float32] = dequantize(raw.reshape(rows // joined, -1), kind)
        except NotImplementedError as error:
            raise GGUFError(f"{self.path.name}: tensor {name} is quantized as {kind.name}, not supported") from error
        return values.reshape(info.shape)


class _Strings(Sequence[str]):
    """An array of strings, decoded when it is read: a vocabulary's takes longer than all else in the file, and only the
    tokenizer wants it.

    Args:
        blob: each string's bytes behind their number as 8 bytes.
    """

    def __init__(self, blob: bytes, count: int) -> None:
        self._blob = blob
        self._count = count

    @cached_property
    def _decoded(self) -> list[str]:
        reader = _Reader(self._blob, 0)
        return [reader.string() for _ in range(self._count)]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._decoded[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded)


def _block(ggml_type: int, name: str, path: Path) -> tuple[int, int]:
    """Values and bytes of a type's block."""
    if ggml_type in _BLOCKS:
        return _BLOCKS[ggml_type]
    from gguf.constants import GGML_QUANT_SIZES  # Imported only for what is rare: it takes longer than the reading.

    sizes: dict[int, tuple[int, int]] = dict(GGML_QUANT_SIZES)
    if ggml_type not in sizes:
        raise GGUFError(f"{path.name}: tensor {name} has the unknown type {ggml_type}")
    return sizes[ggml_type]


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
        tensors = {name: TensorInfo(shape, kind, start + at) for name, shape, kind, at in table}
        return GGUFFile(path, np.memmap(path, np.uint8, "c").view(np.ndarray), metadata, tensors)


class _Reader:
    def __init__(self, blob: mmap.mmap | bytes, position: int) -> None:
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
                return self._strings(count)
            if item == _ARRAY:
                return [self.value(item) for _ in range(count)]
            code = self._code(item)
            at = self.position
            self.position = at + count * struct.calcsize(code)
            return list(struct.unpack_from(f"<{count}{code}", self._blob, at))
        value: MetadataValue = self.scalar(self._code(kind))
        return value

    def _strings(self, count: int) -> _Strings:
        start, at, length_at = self.position, self.position, _LENGTH.unpack_from
        for _ in range(count):
            at += 8 + length_at(self._blob, at)[0]
        self.position = at
        return _Strings(self._blob[start:at], count)

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise GGUFError(f"unknown GGUF value type {kind}")
        return _SCALARS[kind]

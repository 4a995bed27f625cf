"""Reading the built-in model's GGUF file: metadata and where each tensor lies. No torch.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 2 and 3, little-endian). The gguf package's
own reader makes a numpy view of every metadata element, which takes seconds for a vocabulary; this one takes some tens
of milliseconds.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type -> struct format of one value."""
_STRING, _ARRAY = 8, 9

F32 = 0
_BLOCKS = {F32: (1, 4), 3: (32, 20), 8: (32, 34)}
"""GGML type -> values and bytes of a block: F32, Q4_1 and Q8_0, which the built-in model has."""

_ALIGNMENT = 32
"""Default alignment of the tensors' data, bytes."""
_LENGTH = struct.Struct("<Q")


class GGUFError(ValueError):
    """This reader does not understand the file."""


@dataclass(frozen=True, slots=True)
class Strings:
    """An array of strings. Decoding a vocabulary takes longer than all else in the file, and only the tokenizer needs
    it.

    Attributes:
        blob: each string's bytes behind their number as 8 bytes.
    """

    blob: bytes
    count: int

    def decode(self) -> list[str]:
        reader = _Reader(self.blob, 0)
        return [reader.string() for _ in range(self.count)]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Place of a tensor. `shape` has the outermost dimension first, as in numpy. `offset` counts bytes from the start
    of the file."""

    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A file, mapped.

    Attributes:
        content: the whole file. Writing to it changes this process's copy alone.
        metadata: numbers, booleans, strings, and arrays of these; an array of strings as `Strings`.
    """

    path: Path
    content: npt.NDArray[np.uint8]
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return a tensor's bytes, a view of `content`.

        Raises:
            GGUFError: a type that the built-in model does not have.
        """
        info = self.tensors[name]
        if info.ggml_type not in _BLOCKS:
            raise GGUFError(f"{self.path.name}: tensor {name} has the type {info.ggml_type}, which is not supported")
        block_values, block_bytes = _BLOCKS[info.ggml_type]
        num_bytes = math.prod(info.shape) // block_values * block_bytes
        return self.content[info.offset : info.offset + num_bytes]


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
        start = -(-reader.position // _ALIGNMENT) * _ALIGNMENT
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

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            if item == _STRING:
                return self._strings(count)
            code = self._code(item)
            at = self.position
            self.position = at + count * struct.calcsize(code)
            return list(struct.unpack_from(f"<{count}{code}", self._blob, at))
        return self.scalar(self._code(kind))

    def _strings(self, count: int) -> Strings:
        start, at, length_at = self.position, self.position, _LENGTH.unpack_from
        for _ in range(count):
            at += 8 + length_at(self._blob, at)[0]
        self.position = at
        return Strings(self._blob[start:at], count)

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise GGUFError(f"unknown GGUF value type {kind}")
        return _SCALARS[kind]

"""Memory that the API process and the engine process of one vLLM server share: a mapped file with two documents.

The API process writes the limits, the engine process a report; each reads the other's. A document has a number, which
grows with each change, and a checksum: a reader that meets a half-written one reads it again.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from pathlib import Path
from typing import Generic, TypeVar
from zlib import crc32

import msgspec

from inflight_cost.model import CostModel
from inflight_settings.limits import Limits, LimitsInForce

FILE_VARIABLE = "INFLIGHT_STATE_FILE"
_SIZE = 1 << 16
_HALF = _SIZE // 2
_HEADER = struct.Struct("=QII")
_ATTEMPTS = 100
_LOW = 0xFFFF_FFFF

Document = TypeVar("Document")


class Report(msgspec.Struct):
    """Capacities, demand and measurements of the engine process.

    Attributes:
        problem: why limits cannot be changed, in a sentence; None: they can.
        max_num_seqs, max_num_batched_tokens: capacities, from vLLM's own flags.
        policy: vLLM's order of waiting requests.
        block_size, num_blocks: shape of the KV cache.
        revision: of the limits that the latest step had.
        arrived: requests, their prompt tokens, and the sum of the squares of these.
        waiting_prompt_tokens: prompt tokens of all requests that are not computed yet.
        output_mean, output_square: mean tokens of an output and of their squares; None: no output is complete.
        cost: fitted to recent steps, `cost_error` its median relative error, `cost_steps` the steps behind it.
        steps: number of steps.
        step_seconds: of all steps.
        own_seconds: of CPU time that the plugin took of these.
        beside_seconds: of CPU time of the plugin's thread beside the steps, for reports and fits of the cost.
    """

    problem: str | None = None
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    policy: str = ""
    block_size: int = 0
    num_blocks: int = 0
    revision: int = 0
    arrived: tuple[int, int, int] = (0, 0, 0)
    waiting_prompt_tokens: int = 0
    output_mean: float | None = None
    output_square: float | None = None
    cost: CostModel | None = None
    cost_error: float = 0.0
    cost_steps: float = 0.0
    steps: int = 0
    step_seconds: float = 0.0
    own_seconds: float = 0.0
    beside_seconds: float = 0.0

    @property
    def capacity(self) -> Limits:
        """The largest limits."""
        return Limits(self.max_num_seqs, self.max_num_batched_tokens)


class Slot(Generic[Document]):
    """A document in mapped memory, with one writer."""

    def __init__(self, memory: mmap.mmap, offset: int, kind: type[Document]) -> None:
        self._memory = memory
        self._offset = offset
        self._number = memoryview(memory)[offset : offset + 8].cast("Q")
        self._encoder = msgspec.json.Encoder()
        self._kind: type[Document] = kind

    @property
    def number(self) -> int:
        """The document's number; 0: there is none."""
        return self._number[0]

    def write(self, document: Document) -> None:
        """Replace the document."""
        data = self._encoder.encode(document)
        start = self._offset + _HEADER.size
        if start + len(data) > self._offset + _HALF:
            raise ValueError(f"a document of {len(data)} bytes does not fit")
        number = self.number + 1
        self._memory[start : start + len(data)] = data
        # One copy: `pack_into` would clear the header first.
        self._memory[self._offset : start] = _HEADER.pack(number, len(data), crc32(data, number & _LOW))

    def read(self) -> Document | None:
        """Return the document; None: there is none, or its writer ended while it wrote."""
        for _ in range(_ATTEMPTS):
            number, length, checksum = _HEADER.unpack_from(self._memory, self._offset)
            if number == 0:
                return None
            start = self._offset + _HEADER.size
            data = self._memory[start : start + min(length, _HALF)]
            if crc32(data, number & _LOW) == checksum:
                return msgspec.json.decode(data, type=self._kind)
        return None


class Board:
    """The two documents of one server. `limits` is written by the API process, `report` by the engine process."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.limits: Slot[LimitsInForce] = Slot(memory, 0, LimitsInForce)
        self.report: Slot[Report] = Slot(memory, _HALF, Report)

    @classmethod
    def create(cls, path: Path) -> Board:
        """Make an empty board in the place of an earlier one.

        Raises:
            OSError: the file cannot be written.
        """
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            os.ftruncate(descriptor, _SIZE)
            memory = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        Path(name).rename(path)
        return cls(memory)

    @classmethod
    def open(cls, path: Path) -> Board | None:
        """Return the board that the engine process made; None: there is none."""
        try:
            with path.open("r+b") as file:
                return cls(mmap.mmap(file.fileno(), _SIZE))
        except (OSError, ValueError):
            return None


def board_path() -> Path:
    """Return the file of this server's board: a container has one server."""
    return Path(os.environ.get(FILE_VARIABLE) or Path(tempfile.gettempdir()) / "inflight-vllm.state")

"""Reads tensors ahead of the model that takes them: several ranges at once, in bounded memory. No torch."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inflight_engine.models.reading_progress import READING
from inflight_engine.models.remote.stores import CONNECTIONS, PIECE, RemoteFile, Store
from inflight_engine.models.remote.tensors import StoredTensor

WINDOW = 256 << 20
"""Most bytes that were read or asked for, and not taken; with a larger tensor its bytes come on top."""

Bytes = npt.NDArray[np.uint8]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file that one request reads. `tensors`: those that have bytes in it."""

    file: RemoteFile
    start: int
    end: int
    tensors: tuple[StoredTensor, ...]


def cut_pieces(tensors: Sequence[StoredTensor]) -> list[Piece]:
    """Cut tensors into pieces, in their order. Neighbours in the file share pieces."""
    pieces: list[Piece] = []
    run: list[StoredTensor] = []
    for tensor in [*tensors, None]:
        if run and (tensor is None or tensor.file != run[-1].file or tensor.start != run[-1].end):
            pieces += _cut_run(run)
            run = []
        if tensor is not None:
            run.append(tensor)
    return pieces


def _cut_run(run: list[StoredTensor]) -> list[Piece]:
    pieces, first = [], 0
    for start, end in _cuts(run[0].start, run[-1].end):
        while run[first].end <= start:
            first += 1
        last = first
        while last < len(run) and run[last].start < end:
            last += 1
        pieces.append(Piece(run[0].file, start, end, tuple(run[first:last])))
    return pieces


def _cuts(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a range where the file's multiples of `PIECE` are: a cache has those pieces as its blocks."""
    while start < end:
        until = min(start - start % PIECE + PIECE, end)
        yield start, until
        start = until


class _Arriving:
    """A tensor of which bytes are missing."""

    __slots__ = ("data", "missing")

    def __init__(self, tensor: StoredTensor) -> None:
        self.missing = tensor.end - tensor.start
        self.data = np.empty(self.missing, np.uint8)


class Stream:
    """Reads tensors in the background, in this order, and hands each over once.

    Tensors that are taken out of order are read next, whatever waits. `close` ends the reading.

    Args:
        tensors: in the order in which they are expected to be taken.
        window: most bytes that wait to be taken; see `WINDOW`.
    """

    def __init__(self, store: Store, tensors: Sequence[StoredTensor], window: int = WINDOW) -> None:
        self._store = store
        self._window = window
        self._waiting = cut_pieces(tensors)[::-1]  # the next one is last
        self._num_waiting = Counter(tensor.name for piece in self._waiting for tensor in piece.tensors)
        self._left = {tensor.name for tensor in tensors}
        self._arriving: dict[str, _Arriving] = {}
        self._wanted: str | None = None
        self._held = 0
        self._error: Exception | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._num_bytes = sum(piece.end - piece.start for piece in self._waiting)
        self._started = time.monotonic()
        self._unread = len(self._waiting)
        READING.begin(self._num_bytes)
        for number in range(min(CONNECTIONS, len(self._waiting))):
            threading.Thread(target=self._read, name=f"weights-{number}", daemon=True).start()

    def take(self, tensor: StoredTensor) -> Bytes | None:
        """Wait for a tensor's bytes; None: it was taken before, or is not of this stream.

        Raises:
            ModelSourceError: the store cannot be read.
        """
        with self._changed:
            if tensor.name not in self._left:
                return None
            self._left.remove(tensor.name)
            arriving = self._of(tensor)
            self._wanted = tensor.name
            self._changed.notify_all()
            self._changed.wait_for(lambda: arriving.missing == 0 or self._error is not None)
            self._wanted = None
            if arriving.missing and self._error is not None:
                raise self._error
            del self._arriving[tensor.name]
            self._held -= tensor.end - tensor.start
            self._changed.notify_all()
            return arriving.data

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._arriving.clear()
            self._changed.notify_all()

    def _of(self, tensor: StoredTensor) -> _Arriving:
        if tensor.name not in self._arriving:
            self._arriving[tensor.name] = _Arriving(tensor)
        return self._arriving[tensor.name]

    def _read(self) -> None:
        while (piece := self._next()) is not None:
            try:
                data = np.frombuffer(self._store.read(piece.file, piece.start, piece.end), np.uint8)
            except Exception as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return
            READING.add(len(data))
            with self._changed:
                targets = [(tensor, self._of(tensor)) for tensor in piece.tensors] if not self._closed else []
            for tensor, arriving in targets:  # no two pieces have the same bytes
                start, end = max(tensor.start, piece.start), min(tensor.end, piece.end)
                arriving.data[start - tensor.start : end - tensor.start] = data[start - piece.start : end - piece.start]
            with self._changed:
                for tensor, arriving in targets:
                    arriving.missing -= min(tensor.end, piece.end) - max(tensor.start, piece.start)
                self._unread -= 1
                if self._unread == 0:
                    self._log()
                self._changed.notify_all()

    def _next(self) -> Piece | None:
        """Wait until a piece may be read; None: there are no more."""
        with self._changed:
            while True:
                if self._closed or self._error is not None or not self._waiting:
                    return None
                at = self._choose()
                if at is not None:
                    piece = self._waiting.pop(at)
                    self._held += piece.end - piece.start
                    self._num_waiting.subtract(tensor.name for tensor in piece.tensors)
                    return piece
                self._changed.wait()

    def _choose(self) -> int | None:
        """Return the place of the piece that may be read now: one that the model waits for, whatever is held."""
        if self._wanted is not None and self._num_waiting[self._wanted]:
            for at in range(len(self._waiting) - 1, -1, -1):
                if any(tensor.name == self._wanted for tensor in self._waiting[at].tensors):
                    return at
        following = self._waiting[-1]
        return -1 if self._held + following.end - following.start <= self._window else None

    def _log(self) -> None:
        seconds = time.monotonic() - self._started
        log.info(
            "%.2f GB of weights read in %.1f s (%.0f MB/s)",
            self._num_bytes / 1e9,
            seconds,
            self._num_bytes / 1e6 / max(seconds, 1e-3),
        )


def read_range(store: Store, file: RemoteFile, start: int, end: int) -> Bytes:
    """Read bytes of a file now, several ranges at once.

    Raises:
        ModelSourceError: the store cannot be read.
    """
    data = np.empty(end - start, np.uint8)

    def read(piece: tuple[int, int]) -> None:
        at, until = piece
        data[at - start : until - start] = np.frombuffer(store.read(file, at, until), np.uint8)

    if len(data) <= PIECE:
        read((start, end))
        return data
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for _ in pool.map(read, _cuts(start, end)):
            pass
    return data

"""Reads files of a store through a model cache: each block once from the store, by one process of all that share it.

An entry is a file in one version. `data` has its bytes in their places, `blocks` a record for each block that is there:
the checksums of its pages. A process that wants a block that is missing locks the block's byte of `blocks`, reads the
block from a peer or the store, and writes data and record; others wait for the lock and then read what was written. A
process that is killed leaves blocks without a record, which are read again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from inflight_engine.models.remote.cache import CacheError, Entry, ModelCache, NoRoomError, is_full, wait_for, warn
from inflight_engine.models.remote.stores import PIECE, RemoteFile, Store

if TYPE_CHECKING:
    from inflight_engine.models.remote.peers import Peers

PAGE = 1 << 20
"""Bytes with a checksum of their own: reading a small tensor reads so much."""

_DIGEST = 16
"""Bytes of a checksum."""
_RECORD = PIECE // PAGE * _DIGEST

_LOCK_SECONDS = 90.0
"""Time to wait for another process that reads a block: longer than a store's errors are borne."""
_STRIPES = 64


class CachedStore(Store):
    """A store whose files are read through a cache.

    A file without a strong etag is not kept: it may change without notice. Whatever fails in the cache is logged, and
    the store is read instead.

    Args:
        peers: engines that may have blocks; None: there are none.
    """

    def __init__(self, source: str, cache: ModelCache, peers: Peers | None = None) -> None:
        super().__init__(source)
        self._cache = cache
        self._peers = peers
        self._lock = threading.Lock()
        self._files: dict[RemoteFile, CachedFile | None] = {}
        self._trouble: set[str] = set()
        self._usable = self._writes = True

    def read(self, file: RemoteFile, start: int, end: int) -> memoryview:
        """Read bytes `start` to `end` of a file, in the version that was found.

        Raises:
            ModelSourceError: as `Store.read`.
        """
        if start == end or not file.name.endswith(".safetensors"):
            return super().read(file, start, end)
        with self._lock:
            if file not in self._files:
                self._files[file] = self._open(file)
            cached = self._files[file]
        return super().read(file, start, end) if cached is None else self._read(cached, start, end)

    def fill(self, file: RemoteFile, start: int) -> int:
        """Bring the block that begins at `start` into the cache. Returns its bytes.

        Raises:
            ModelSourceError: as `Store.read`.
            CacheError: the cache does not keep it.
        """
        num_bytes = min(PIECE, file.size - start)
        self.read(file, start, start + num_bytes)  # each page: one may be damaged
        if self._trouble:
            raise CacheError(next(iter(self._trouble)))
        return num_bytes

    def find(self, file: RemoteFile) -> CachedFile | None:
        """Open a file's entry, if there is one. Raises CacheError or OSError: the folder cannot be used."""
        entry = self._cache.find(self.key(file))
        return None if entry is None else CachedFile(entry, file, self.source)

    def _open(self, file: RemoteFile) -> CachedFile | None:
        if not self._usable:
            return None
        if file.etag is None or file.etag.startswith("W/"):
            self._complain(f"{file.name} is not kept in the model cache: the server gives it no strong ETag")
            return None
        try:
            return CachedFile(self._cache.hold(self.key(file), _size(file)), file, self.source)
        except CacheError as error:
            # Each file would wait for the lock of the folder anew.
            self._usable = isinstance(error, NoRoomError)
            self._complain(f"{file.name if self._usable else 'all'} is read from the source: {error}")
        except OSError as error:
            self._complain(f"{file.name} is read from the source: the model cache: {error.strerror or error}")
        return None

    def key(self, file: RemoteFile) -> str:
        """Return the name of a file's entry, which depends on the content: also on the store, as another one may give
        other bytes the same etag."""
        place = [os.environ.get("INFLIGHT_MODEL_ENDPOINT", "")]
        if self.source.startswith("az:"):  # whose URL has no account
            place.append(os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""))
        layout = f"{PIECE}/{PAGE}/{_DIGEST}"
        parts = (self.source, *place, file.name, str(file.size), str(file.etag), layout)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _read(self, cached: CachedFile, start: int, end: int) -> memoryview:
        first, last = start // PIECE, (end - 1) // PIECE
        if first == last:
            return self._read_block(cached, first, start, end)
        whole = np.empty(end - start, np.uint8).data
        for number in range(first, last + 1):
            at, until = max(start, number * PIECE), min(end, (number + 1) * PIECE)
            whole[at - start : until - start] = self._read_block(cached, number, at, until)
        return whole

    def _read_block(self, cached: CachedFile, number: int, start: int, end: int) -> memoryview:
        found = self._stored(cached, number, start, end)
        if found is not None:
            return found
        key = self.key(cached.file)
        if self._peers is not None:
            self._peers.wait_for(key, number)  # without the lock: a peer may wait for it
        with self._only_here(cached, number) as alone:
            found = self._stored(cached, number, start, end)
            if found is not None:
                return found
            begin = number * PIECE
            until = min(begin + PIECE, cached.file.size)
            data = None if self._peers is None else self._peers.read(key, number, until - begin)
            if data is None:
                data = super().read(cached.file, begin, until)
                if self._peers is not None:
                    self._peers.counts.add(source_bytes=until - begin)
            if alone and self._writes:
                self._keep(cached, number, data)
            return data[start - begin : end - begin]

    @contextmanager
    def _only_here(self, cached: CachedFile, number: int) -> Iterator[bool]:
        """Lock a block; False: the lock is not to be had."""
        with cached.stripes[number % _STRIPES]:
            try:
                alone = wait_for(lambda: cached.try_lock(number), _LOCK_SECONDS)
                if not alone:
                    self._complain(f"blocks of {cached.file.name} are locked by another process for too long")
            except OSError as error:
                self._complain(f"the model cache has no locks of ranges: {error.strerror or error}")
                alone = False
            try:
                yield alone
            finally:
                if alone:
                    cached.unlock(number)

    def _stored(self, cached: CachedFile, number: int, start: int, end: int) -> memoryview | None:
        try:
            return cached.stored(number, start, end)
        except OSError as error:
            self._complain(f"{cached.file.name} is read from the source: the model cache: {error.strerror or error}")
            return None

    def _keep(self, cached: CachedFile, number: int, data: memoryview) -> None:
        try:
            cached.keep(number, data)
        except OSError as error:
            self._writes = False
            reason = "its disk is full" if is_full(error) else error.strerror or error
            self._complain(f"the model cache cannot be written: {reason}; weights are read from the source")

    def _complain(self, sentence: str) -> None:
        if sentence not in self._trouble:
            self._trouble.add(sentence)
            warn(self.source, sentence)


class CachedFile:
    """A file in the cache. It is released with this object: reads in flight keep it."""

    def __init__(self, entry: Entry, file: RemoteFile, source: str) -> None:
        self.file = file
        self._source = source
        self.stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._entry = entry
        self._data, self._blocks = (self._opened(name) for name in ("data", "blocks"))

    def _opened(self, name: str) -> int:
        descriptor = self._entry.open(name)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def record(self, number: int) -> bytes | None:
        """Return the checksums of a block's pages, as `checksums`; None: the block is not here."""
        record = os.pread(self._blocks, _RECORD, number * _RECORD)
        num_bytes = min(PIECE, self.file.size - number * PIECE)
        return record[: -(-num_bytes // PAGE) * _DIGEST] if any(record) else None

    def part(self, number: int, start: int, count: int) -> bytes:
        """Return bytes of a block from its byte `start` on, fewer than `count` at its end. They are not checked."""
        return os.pread(self._data, min(count, PIECE - start), number * PIECE + start)

    def stored(self, number: int, start: int, end: int) -> memoryview | None:
        """Return bytes of a block; None: it is not here, or damaged."""
        record = self.record(number)
        if record is None:
            return None
        first = start // PAGE
        pages = range(first, (end - 1) // PAGE + 1)
        data = np.empty(min(pages.stop * PAGE, self.file.size) - first * PAGE, np.uint8).data
        intact = _read_full(self._data, data, first * PAGE)
        if not intact or any(
            _digest(data[(page - first) * PAGE : (page - first + 1) * PAGE]) != _digest_in(record, page)
            for page in pages
        ):
            warn(
                self._source,
                f"a block of {self.file.name} in the model cache is damaged: it is read from the source again",
            )
            return None
        return data[start - first * PAGE : end - first * PAGE]

    def keep(self, number: int, data: memoryview) -> None:
        """Write a block and then its record: what has one is whole, or its checksums say that it is not."""
        _write_full(self._data, data, number * PIECE)
        record = checksums(data).ljust(_RECORD, b"\0")
        _write_full(self._blocks, memoryview(record), number * _RECORD)

    def try_lock(self, number: int) -> bool:
        """Lock a block against other processes. Returns whether it could be had at once."""
        try:
            self._lock(fcntl.F_WRLCK, number)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def unlock(self, number: int) -> None:
        self._lock(fcntl.F_UNLCK, number)

    def _lock(self, kind: int, number: int) -> None:
        # Of the open file, not of the process: other descriptors of the file may be closed without an end of the lock.
        fcntl.fcntl(self._blocks, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, number, 1, 0))


def _size(file: RemoteFile) -> int:
    """Return the most bytes of an entry, beside its folder."""
    return file.size + -(-file.size // PIECE) * _RECORD


def checksums(block: memoryview) -> bytes:
    """Return those of a block's pages, one after the other."""
    return b"".join(_digest(block[at : at + PAGE]) for at in range(0, len(block), PAGE))


def _digest(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST]


def _digest_in(record: bytes, page: int) -> bytes:
    at = page % (PIECE // PAGE) * _DIGEST
    return record[at : at + _DIGEST]


def _read_full(descriptor: int, data: memoryview, offset: int) -> bool:
    done = 0
    while done < len(data):
        count = os.preadv(descriptor, [data[done:]], offset + done)
        if count == 0:
            return False
        done += count
    return True


def _write_full(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count

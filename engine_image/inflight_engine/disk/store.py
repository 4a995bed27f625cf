"""Blocks of keys and values in one file: bounded, encrypted, and found again after a restart."""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import struct
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from inflight_engine.block_events import HASH_SIZE
from inflight_engine.disk.work import DamagedError

log = logging.getLogger(__name__)

PAGE = 4096
"""Bytes to which direct I/O is aligned."""

_NONCE, _TAG = 12, 16
_NAME = struct.Struct(f"<{HASH_SIZE}sqQ{_NONCE}s")
"""A slot's name: hash of the block, its checksum, when it was written (a count), and the nonce of its bytes."""

_NO_DIRECT_IO = (errno.EINVAL, errno.EOPNOTSUPP)
_BUFFERED = "the file system of the disk has no direct I/O: blocks of the KV cache go through the page cache"

_MOST_FILES = 64
"""Engines that share a folder, at most: each has a file of its own."""


def derive_key(token: bytes, *identity: str) -> bytes:
    """Return the key of a store (HKDF, RFC 5869).

    Args:
        token: the secret.
        identity: what blocks depend on beside their tokens. Stores of another identity have another key, and find
            nothing here.
    """
    info = "\0".join(identity).encode()
    return HKDF(SHA256(), 32, salt=b"inflight kv blocks", info=info).derive(token)


class DiskStore:
    """A `Store` in one file.

    The file is a row of slots, each a page with the name of a block, then the block; both are encrypted with AES-GCM,
    whose tag is the checksum. A name is wiped before its slot gets another block and written after it, so a process
    that is killed leaves no name without its block. A name that this key does not open is that of an empty slot.

    One thread calls everything; others may call `has` and `usage` meanwhile.

    Args:
        folder: made where it is missing. Takes the first file of it that no other engine has.
        num_bytes: size of the file, at most.
        block_bytes: size of each block.

    Raises:
        ValueError: not even one block fits in.
        OSError: the file cannot be opened.

    Attributes:
        lost: called with the hash of a block that cannot be found any more.
    """

    def __init__(self, folder: Path, num_bytes: int, block_bytes: int, key: bytes) -> None:
        self._block_bytes = block_bytes
        self._slot_bytes = PAGE + -(-(block_bytes + _TAG) // PAGE) * PAGE
        self._num_slots = num_bytes // self._slot_bytes
        if self._num_slots < 1:
            raise ValueError(f"{num_bytes} bytes hold no block: one takes {self._slot_bytes}")
        self.lost: Callable[[bytes], None] = lambda block_hash: None
        self._cipher = AESGCM(key)
        self._slots: OrderedDict[bytes, int] = OrderedDict()
        """Slot of each block, least recently used first."""
        self._empty: list[int] = []
        """Slots of the file that have no block."""
        self._num_written = 0
        # Memory of its own is aligned to pages.
        self._buffer = memoryview(mmap.mmap(-1, self._slot_bytes))
        self._file = _open(folder)
        try:
            size = min(os.fstat(self._file).st_size // self._slot_bytes, self._num_slots)
            os.ftruncate(self._file, size * self._slot_bytes)
            self._size = size
            """Slots that the file has."""
            self._recover()
        except BaseException:
            os.close(self._file)
            raise

    def has(self, block_hash: bytes) -> bool:
        """See `Store`."""
        return block_hash in self._slots

    def usage(self) -> int:
        """See `Store`."""
        return len(self._slots)

    def hashes(self) -> list[bytes]:
        """Return the hashes of all blocks, least recently used first."""
        return list(self._slots)

    def write(self, block_hash: bytes, block: memoryview, checksum: int) -> bool:
        """See `Store`. Where the disk is full, what the file has is used again from then on."""
        if block_hash in self._slots:
            self._slots.move_to_end(block_hash)
            return False
        nonce = os.urandom(_NONCE)
        end = PAGE + self._block_bytes + _TAG
        self._cipher.encrypt_into(nonce, block, block_hash, self._buffer[PAGE:end])
        slot = self._take_slot()
        try:
            self._write(slot, slice(PAGE, None))
            self._num_written += 1
            self._name(_NAME.pack(block_hash, checksum, self._num_written, nonce))
            self._write(slot, slice(0, PAGE))
        except OSError:
            self._empty.append(slot)
            raise
        self._slots[block_hash] = slot
        return True

    def read(self, block_hash: bytes, into: memoryview) -> int:
        """See `Store`."""
        slot = self._slots[block_hash]
        try:
            if self._transfer(os.preadv, [self._buffer], slot * self._slot_bytes) != self._slot_bytes:
                raise DamagedError("the file is cut")
            name = self._opened_name()
            if name is None or name[0] != block_hash:
                raise DamagedError("the slot has another block")
            _, checksum, _, nonce = name
            end = PAGE + self._block_bytes + _TAG
            try:
                self._cipher.decrypt_into(nonce, self._buffer[PAGE:end], block_hash, into)
            except InvalidTag:
                raise DamagedError("the block has another checksum") from None
        except (DamagedError, OSError):
            self.drop(block_hash)
            raise
        self._slots.move_to_end(block_hash)
        return checksum

    def touch(self, block_hash: bytes) -> None:
        """See `Store`."""
        if block_hash in self._slots:
            self._slots.move_to_end(block_hash)

    def drop(self, block_hash: bytes) -> None:
        """See `Store`."""
        slot = self._slots.pop(block_hash, None)
        if slot is not None:
            self._empty.append(slot)
            self.lost(block_hash)
            # Where it cannot be written either, a restart finds the block again, and drops it again.
            with suppress(OSError):
                self._wipe(slot)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _take_slot(self) -> int:
        """Return a slot without a name, empty or that of the least recently used block."""
        if self._empty:
            return self._empty.pop()
        if self._size < self._num_slots:
            slot = self._size
            try:
                os.posix_fallocate(self._file, slot * self._slot_bytes, self._slot_bytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or not self._slots:
                    raise
                self._num_slots = self._size
            else:
                self._size += 1
                return slot
        block_hash, slot = next(iter(self._slots.items()))
        del self._slots[block_hash]
        self.lost(block_hash)
        try:
            self._wipe(slot)
        except OSError:
            self._empty.append(slot)
            raise
        return slot

    def _recover(self) -> None:
        """Find the blocks that are in the file."""
        found: list[tuple[int, bytes, int]] = []
        for slot in range(self._size):
            count = self._transfer(os.preadv, [self._buffer[:PAGE]], slot * self._slot_bytes)
            name = self._opened_name() if count == PAGE else None
            if name is None:
                self._empty.append(slot)
            else:
                found.append((name[2], name[0], slot))
        for written, block_hash, slot in sorted(found):
            if block_hash in self._slots:
                self._empty.append(self._slots.pop(block_hash))
            self._slots[block_hash] = slot
            self._num_written = written

    def _name(self, name: bytes) -> None:
        """Put an encrypted name into the buffer."""
        nonce = os.urandom(_NONCE)
        sealed = nonce + self._cipher.encrypt(nonce, name, None)
        self._buffer[: len(sealed)] = sealed
        self._buffer[len(sealed) : PAGE] = bytes(PAGE - len(sealed))

    def _opened_name(self) -> tuple[bytes, int, int, bytes] | None:
        """Return the name that the buffer has; None: it has none."""
        sealed = bytes(self._buffer[: _NONCE + _NAME.size + _TAG])
        try:
            name = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
        except InvalidTag:
            return None
        return _NAME.unpack(name)

    def _wipe(self, slot: int) -> None:
        """Write a page without a name; the rest of the buffer stays."""
        self._buffer[:PAGE] = bytes(PAGE)
        self._write(slot, slice(0, PAGE))

    def _write(self, slot: int, part: slice) -> None:
        """Write a part of the buffer to a slot."""
        data = self._buffer[part]
        start = slot * self._slot_bytes + (part.start or 0)
        if self._transfer(os.pwritev, [data], start) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _transfer(self, call: Callable[[int, list[memoryview], int], int], data: list[memoryview], start: int) -> int:
        """Read or write. Some file systems take the flag of direct I/O and refuse the I/O: then the page cache is used
        from now on."""
        try:
            return call(self._file, data, start)
        except OSError as error:
            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            if error.errno not in _NO_DIRECT_IO or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            log.info(_BUFFERED)
            return call(self._file, data, start)


def _open(folder: Path) -> int:
    """Open and lock the first file of a folder that nobody has locked."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(_MOST_FILES):
        path = folder / f"blocks-{number}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        except OSError:
            os.close(file)
            raise
        else:
            # The page cache would take CPU time for each block, and memory for copies of what host memory gave up.
            try:
                fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_DIRECT)
            except OSError:
                log.info(_BUFFERED)
            return file
    raise OSError(errno.EMFILE, f"all {_MOST_FILES} files in {folder} are in use")

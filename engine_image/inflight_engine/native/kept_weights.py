"""Packed weights in memory that outlives the engine process: a file in memory (memfd) of the API process. No torch.

The first engine process fills it and seals it: from then on nobody can write to it or change its size. The next one
maps it, where the weights are what it would pack, and packs in memory of its own otherwise. A file that is not sealed
was not finished, and is filled anew.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

DESCRIPTOR_VARIABLE = "INFLIGHT_WEIGHTS_FD"
"""Variable of the environment with the number of the file's descriptor, which the engine process inherits."""

IDENTITY_BYTES = 32
_HEADER_BYTES = 64
"""At the file's begin, before the weights: their identity. A cache line, to which they are aligned."""
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_WITHOUT = ("never", "deny")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


def has_huge_pages(setting: Path = _HUGE_PAGES) -> bool:
    """Return whether Linux gives shared memory huge pages here. Without them a step that reads all weights takes up to
    a quarter more time."""
    try:
        words = setting.read_text().split()
    except OSError:
        return False
    chosen = next((word.strip("[]") for word in words if word.startswith("[")), "never")
    return chosen not in _WITHOUT


def inherited() -> KeptWeights | None:
    """Return the API process's file; None: there is none."""
    try:
        descriptor = int(os.environ[DESCRIPTOR_VARIABLE])
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)  # only a memfd has seals
        os.set_inheritable(descriptor, False)
    except (KeyError, ValueError, OSError):
        return None
    return KeptWeights(descriptor)


class KeptWeights:
    """The file that `descriptor` names."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def sealed(self) -> bool:
        """Returns whether the file has the weights of a model, whole."""
        return bool(fcntl.fcntl(self._descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)

    def take(self, identity: bytes, num_bytes: int, fill: Callable[[int], object]) -> Mapping | None:
        """Map the weights, read-only.

        Args:
            identity: `IDENTITY_BYTES` that differ where the weights do.
            num_bytes: of the weights.
            fill: writes them, from this address on, to memory that is zero. It is called only for a file that is not
                sealed.

        Returns:
            None: the file has other weights, or cannot be used.
        """
        assert len(identity) == IDENTITY_BYTES
        size = _HEADER_BYTES + num_bytes
        try:
            if not self.sealed:
                self._fill(identity, size, fill)
            elif (
                os.pread(self._descriptor, IDENTITY_BYTES, 0) != identity or os.fstat(self._descriptor).st_size != size
            ):
                log.warning("the weights in memory are not those of this model any more: it is read again")
                return None
            return Mapping(self._descriptor, size, mmap.PROT_READ)
        except OSError as error:
            log.warning("the engine process has its weights for itself: %s", error.strerror)
            return None

    def _fill(self, identity: bytes, size: int, fill: Callable[[int], object]) -> None:
        os.ftruncate(self._descriptor, 0)  # what another process left unfinished
        try:
            os.ftruncate(self._descriptor, size)
            os.pwrite(self._descriptor, identity, 0)
            writable = Mapping(self._descriptor, size, mmap.PROT_READ | mmap.PROT_WRITE)
            try:
                fill(writable.address)
            finally:
                writable.close()
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.ftruncate(self._descriptor, 0)  # else it takes memory for nothing as long as the API process lives
            raise


class Mapping:
    """The file in this process's memory, until nothing holds this object any more. `address`: of the weights."""

    def __init__(self, descriptor: int, size: int, protection: int) -> None:
        begin = _libc.mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
        if begin == _MAP_FAILED and ctypes.get_errno() == errno.EPERM and protection == mmap.PROT_READ:
            # Before 6.7 Linux shares no memory that is sealed against writes, even to read. The pages are the same.
            begin = _libc.mmap(None, size, protection, mmap.MAP_PRIVATE, descriptor, 0)
        if begin == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"no memory for {size} bytes of weights ({errno.errorcode[number]})")
        _libc.madvise(begin, size, mmap.MADV_HUGEPAGE)
        self.address = begin + _HEADER_BYTES
        self.close = weakref.finalize(self, _libc.munmap, begin, size)

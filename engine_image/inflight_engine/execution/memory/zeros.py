"""Zeroed memory for caches; on the host it is allocated on first access, and can be given back."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import threading
import time

import torch

_libc = ctypes.CDLL(None, use_errno=True)
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14, which Python does not name."""
_PIECE_BYTES = 2 << 20
_REST = 4.0
"""Seconds of rest for each second of touching memory ahead."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros on a device. On CPU they begin on a page, and the pages come zeroed from the system when they are first
    touched, so a large cache costs no time to start; they are huge where the system has such, as what is read lies all
    over the cache.

    Raises:
        MemoryError: the system does not give so much address space; the message says what to set.
    """
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        region = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(
            f"no memory for a cache of {num_bytes} bytes; lower kv_cache_memory, num_kv_blocks or swap_space"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=dtype).view(shape)


def give_back(cache: torch.Tensor) -> None:
    """Give the pages of `zeros` on the host, or of a view of all of them, back to the system. They keep their
    addresses, and come zeroed again when they are next touched. Source: madvise(2), MADV_DONTNEED.

    Raises:
        OSError: the system keeps them.
    """
    memory = cache.untyped_storage()
    if memory.nbytes() and _libc.madvise(
        ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.nbytes()), mmap.MADV_DONTNEED
    ):
        number = ctypes.get_errno()
        raise OSError(number, f"{memory.nbytes()} bytes of a cache cannot be given back: {os.strerror(number)}")


class TouchedAhead:
    """Touches the pages of `zeros` on the host before they are used, in a thread that takes a fifth of a core: the
    first use of a huge page takes up to 5 ms in a virtual machine whose host takes back what is free. What the pages
    hold stays. Source: madvise(2); kernels without MADV_POPULATE_WRITE touch nothing ahead."""

    def __init__(self, cache: torch.Tensor) -> None:
        self._memory = cache.untyped_storage()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="touch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return once nothing is touched ahead any more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        begin, size = self._memory.data_ptr(), self._memory.nbytes()
        for at in range(0, size, _PIECE_BYTES):
            started = time.monotonic()
            piece = ctypes.c_size_t(min(_PIECE_BYTES, size - at))
            if _libc.madvise(ctypes.c_void_p(begin + at), piece, _POPULATE_WRITE):
                return
            # A thread of the idle class would keep the lock of the address space while it waits for a core.
            if self._stopped.wait(_REST * (time.monotonic() - started)):
                return


def trim() -> None:
    """Give what the C library holds of freed memory back to the system. Source: malloc_trim(3), of glibc."""
    _libc.malloc_trim(0)

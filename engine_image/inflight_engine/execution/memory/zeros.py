"""Zeroed memory for caches; on the host it is allocated on first access, and can be given back."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os

import torch

_libc = ctypes.CDLL(None, use_errno=True)


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


def trim() -> None:
    """Give what the C library holds of freed memory back to the system. Source: malloc_trim(3), of glibc."""
    _libc.malloc_trim(0)

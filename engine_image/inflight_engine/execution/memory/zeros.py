"""Zeroed memory for caches; on the host it is allocated on first access."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch


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

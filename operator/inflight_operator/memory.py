"""Keeps the C library from holding memory that is free. Source: mallopt(3), malloc_trim(3)."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_ARENA_MAX = -1, -8
_FREE_BYTES = 128 * 1024
_ARENAS = 2

_libc = ctypes.CDLL(None)
_HAS_SETTINGS = hasattr(_libc, "mallopt") and hasattr(_libc, "malloc_trim")  # of glibc; musl has neither


def keep_little() -> None:
    """Give free memory back from 128 KiB on, and let all threads share two arenas: each holds what is free in it."""
    if _HAS_SETTINGS:
        _libc.mallopt(_M_ARENA_MAX, _ARENAS)
        _libc.mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)


def give_back() -> None:
    """Give back what is free now."""
    if _HAS_SETTINGS:
        _libc.malloc_trim(0)

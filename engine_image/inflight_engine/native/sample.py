"""The kernels of kernels/sample.cpp: choosing tokens from rows of logits on CPU, each row by one thread.

What they take is what `can_sample` says yes to. `rows`: int64 [N], the rows of the matrix to work on; None: all.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.native.library import check, library, team

_CACHE_LINE = 64

DRAW = np.dtype(
    [
        ("temperature", np.float64),
        ("min_p", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("number", np.float64),
    ]
)
"""`Draw` in kernels/sample.cpp. `number`: uniform in [0, 1)."""


class _Rows(ctypes.Structure):
    """`Rows` in kernels/sample.cpp."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("index", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


def can_sample(logits: torch.Tensor) -> bool:
    """Return whether the kernels take these logits: float32 [N, V] on a CPU that they are compiled for."""
    is_float32 = logits.is_cpu and logits.dtype == torch.float32
    return is_float32 and logits.stride(-1) == 1 and library() is not None


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the place of each row's greatest number, int64 [N]: the first of equals; of a NaN, where there is one."""
    tokens = torch.empty(len(logits), dtype=torch.int64)
    check(_kernels().inflight_argmax(team(), _rows(logits, None), tokens.data_ptr()), "argmax")
    return tokens


def draw(logits: torch.Tensor, rows: npt.NDArray[np.int64] | None, how: npt.NDArray[np.void]) -> torch.Tensor:
    """Draw one token a row, int64 [N].

    Args:
        how: DRAW [N].
    """
    tokens = torch.empty(len(how), dtype=torch.int64)
    matrix = _rows(logits, rows)
    scratch = _scratch(_kernels().inflight_draw_scratch(team(), matrix.width))
    aligned = -(-scratch.ctypes.data // _CACHE_LINE) * _CACHE_LINE
    check(_kernels().inflight_draw(team(), matrix, how.ctypes.data, aligned, tokens.data_ptr()), "draw")
    return tokens


def log_softmax(logits: torch.Tensor, rows: npt.NDArray[np.int64] | None) -> torch.Tensor:
    """Return the log-softmax of some rows, float32 [N, V]."""
    matrix = _rows(logits, rows)
    out = torch.empty((matrix.count, matrix.width), dtype=torch.float32)
    check(_kernels().inflight_log_softmax(team(), matrix, out.data_ptr()), "log_softmax")
    return out


def likeliest(logprobs: torch.Tensor, count: int) -> torch.Tensor:
    """Return the places of each row's greatest numbers, int64 [N, count], falling, the first of equals first; count is
    at most V."""
    places = torch.empty((len(logprobs), count), dtype=torch.int64)
    check(_kernels().inflight_likeliest(team(), _rows(logprobs, None), count, places.data_ptr()), "likeliest")
    return places


def _rows(matrix: torch.Tensor, index: npt.NDArray[np.int64] | None) -> _Rows:
    """Describe some rows of a matrix to the kernels. The result points into both arguments, which have to live as
    long."""
    if index is None:
        return _Rows(matrix.data_ptr(), matrix.stride(0), None, *matrix.shape)
    return _Rows(matrix.data_ptr(), matrix.stride(0), index.ctypes.data, len(index), matrix.shape[-1])


@cache
def _scratch(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return the memory that all threads together need to draw. It is not initialised, so unused pages are never
    there."""
    return np.empty(num_bytes + _CACHE_LINE, np.uint8)


@cache
def _kernels() -> ctypes.CDLL:
    kernels = library()
    assert kernels is not None, "who comes here has asked can_sample"
    pointer, rows, integer = ctypes.c_void_p, ctypes.POINTER(_Rows), ctypes.c_int64
    kernels.inflight_argmax.argtypes = [pointer, rows, pointer]
    kernels.inflight_draw_scratch.argtypes = [pointer, integer]
    kernels.inflight_draw_scratch.restype = integer
    kernels.inflight_draw.argtypes = [pointer, rows, pointer, pointer, pointer]
    kernels.inflight_log_softmax.argtypes = [pointer, rows, pointer]
    kernels.inflight_likeliest.argtypes = [pointer, rows, integer, pointer]
    return kernels

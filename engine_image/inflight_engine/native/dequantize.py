"""The kernels of kernels/dequantize.cpp: weights of GGUF files back to float32."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.native.library import check, library, team

_TYPES = frozenset({2, 3, 6, 7, 8, 12, 13, 14})
"""ggml_type: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K."""


def can_dequantize(ggml_type: int) -> bool:
    return ggml_type in _TYPES and library() is not None


def dequantize(raw: npt.NDArray[np.uint8], ggml_type: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return float32 of a shape, from a type that `can_dequantize`.

    Raises:
        KernelError: the shape is not one of whole blocks.
    """
    kernels = library()
    assert kernels is not None, "who comes here has asked can_dequantize"
    function = kernels.inflight_dequantize
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    values = torch.empty(shape)
    check(function(team(), ggml_type, raw.ctypes.data, values.numel(), values.data_ptr()), "dequantizing")
    return values

"""Weights of the built-in model's GGUF file back to float32: by kernels/dequantize.cpp, or by torch where there are no
kernels, to the same bits."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch

from inflight_engine.native.library import check, library, team

_Q8_0 = 8
"""GGML type: blocks of 32 values of 8 bits with a scale. The other one is Q4_1: 4 bits with a scale and an offset."""


def dequantize(raw: npt.NDArray[np.uint8], ggml_type: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return float32 of a shape, from Q4_1 or Q8_0.

    Raises:
        KernelError: the shape is not one of whole blocks.
    """
    kernels = library()
    if kernels is None:
        return _dequantize(torch.from_numpy(raw), ggml_type).view(shape)
    function = kernels.inflight_dequantize
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    values = torch.empty(shape)
    check(function(team(), ggml_type, raw.ctypes.data, values.numel(), values.data_ptr()), "dequantizing")
    return values


def _dequantize(raw: torch.Tensor, ggml_type: int) -> torch.Tensor:
    """float32 [blocks, 32]."""
    if ggml_type == _Q8_0:
        blocks = raw.view(-1, 34)
        return blocks[:, 2:].view(torch.int8) * blocks[:, :2].contiguous().view(torch.float16).float()
    blocks = raw.view(-1, 20)
    scale, offset = blocks[:, :4].contiguous().view(torch.float16).float()[:, :, None].unbind(1)
    return (torch.cat((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), 1) * scale).add_(offset)

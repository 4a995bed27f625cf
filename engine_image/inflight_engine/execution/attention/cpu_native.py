"""Paged attention of the CPU kernels, which read the cache's blocks in place (`engine_image/kernels/attention.h`).

The cache is one piece of memory: [num_layers][num_blocks][a block's bytes], of which only the kernels know the inside.
A sequence's result is the same bits whatever else is in the batch, however its prompt is cut into chunks, and with any
number of threads.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import ClassVar

import numpy as np
import torch

from inflight_engine.execution.attention.base import AttentionBackend, AttentionBatch, AttentionSpec, StepShape
from inflight_engine.execution.memory.zeros import zeros
from inflight_engine.native.library import check, library, team

_LANES = 16
_MOST_HEAD_DIM = 256

_begin = (ctypes.c_char * 0).from_buffer
"""Makes an argument of an array's memory (`array.data`) in a third of the time that `array.ctypes` takes. Raises
TypeError if the array is not contiguous, or read-only."""


class _KVCache(ctypes.Structure):
    """`KVCache` of attention.h."""

    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_layers", "num_blocks", "block_size", "num_heads", "num_kv_heads")),
        *((name, ctypes.c_int64) for name in ("head_dim", "element_bytes")),
        ("windows", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


class _Chunk(ctypes.Structure):
    """`Chunk` of attention.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in ("first", "length", "start")),
        ("block_ids", ctypes.c_void_p),
    ]


class CpuNativeBackend(AttentionBackend):
    """See the module.

    Attributes:
        step: handle of the kernels' `AttentionStep`, for a decoder that runs its layers in the kernels too.
    """

    name = "cpu-native"

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        shape = spec.shape
        if spec.device.type != "cpu":
            return "it runs on CPU only"
        if spec.dtype not in (torch.float32, torch.bfloat16):
            return f"it computes in float32 and bfloat16, not in {spec.dtype}"
        if spec.cache_dtype != spec.dtype:
            return f"it keeps keys and values in {spec.dtype}, not in {spec.cache_dtype}"
        if shape.head_dim % _LANES or shape.head_dim > _MOST_HEAD_DIM:
            return f"head_dim is {shape.head_dim}, not a multiple of {_LANES} up to {_MOST_HEAD_DIM}"
        if spec.block_size % _LANES:
            return f"block_size is {spec.block_size}, not a multiple of {_LANES}"
        if library() is None:
            return "the CPU kernels are off, or none is compiled for this CPU"
        return None

    def __init__(self, spec: AttentionSpec) -> None:
        shape = spec.shape
        self._block_size = spec.block_size
        kernels = library()
        assert kernels is not None, "why_not is asked first"
        self._prepare = kernels.inflight_attention_prepare
        self._prepare.restype = None
        self._prepare.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
            *(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
            *(ctypes.c_int64, ctypes.c_void_p),
        ]
        self._attend = kernels.inflight_attention
        self._attend.restype = None
        self._attend.argtypes = [ctypes.c_void_p, ctypes.c_int, *([ctypes.c_void_p] * 4)]

        bytes_per_token = shape.kv_bytes_per_token(spec.cache_dtype.itemsize) // shape.num_layers
        block_bytes = bytes_per_token * spec.block_size
        self._cache = zeros((shape.num_layers, spec.num_blocks, block_bytes), torch.uint8, spec.device)

        self._windows = np.array([window or 0 for window in shape.sliding_windows], np.int64)
        self._description = _KVCache(
            data=self._cache.data_ptr(),
            num_layers=shape.num_layers,
            num_blocks=spec.num_blocks,
            block_size=spec.block_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            element_bytes=spec.cache_dtype.itemsize,
            windows=self._windows.ctypes.data,
            scale=shape.head_dim**-0.5 if shape.scale is None else shape.scale,
            softcap=shape.softcap or 0.0,
        )
        self.step = ctypes.c_void_p()
        error = kernels.inflight_attention_new(ctypes.byref(self._description), team(), ctypes.byref(self.step))
        check(error, "preparing the CPU kernels' attention")
        weakref.finalize(self, kernels.inflight_attention_free, self.step)

    def prepare(self, batch: AttentionBatch, shape: StepShape | None = None) -> None:
        if shape is not None:
            raise ValueError(f"{self.name} runs no padded batches")
        kv_slots, lens = batch.kv_slots, batch.decode_context_lens
        table = batch.decode_blocks(self._block_size)
        chunks = None
        if batch.chunks:
            first_blocks = (batch.block_table[chunk.slot].ctypes.data for chunk in batch.chunks)
            chunks = (_Chunk * len(batch.chunks))(
                *[
                    _Chunk(chunk.first, chunk.length, chunk.start, blocks)
                    for chunk, blocks in zip(batch.chunks, first_blocks, strict=True)
                ]
            )
        self._prepared = (batch, table, chunks)  # the kernels read them in every layer
        self._prepare(
            *(self.step, len(kv_slots), _begin(kv_slots.data)),
            *(len(lens), _begin(table.data), table.shape[1], _begin(lens.data)),
            *(len(batch.chunks), chunks),
        )

    def forward(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        q, k, v = (tensor.to(torch.float32).contiguous() for tensor in (queries, keys, values))
        out = torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=torch.float32)
        self._attend(self.step, layer, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
        return out.to(queries.dtype)

    def blocks(self) -> torch.Tensor:
        return self._cache.movedim(1, 0)

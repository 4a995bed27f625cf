"""Common parts of the attention backends for GPUs: the cache, a step's inputs on the device, copies of blocks."""

from __future__ import annotations

from abc import abstractmethod

import torch

from inflight_engine.execution.attention.base import AttentionBackend, AttentionBatch, AttentionSpec, StepShape
from inflight_engine.execution.attention.gpu_step import GpuStep, StepStaging
from inflight_engine.execution.memory.zeros import zeros


class PagedGpuBackend(AttentionBackend):
    """Keeps the cache in device memory, [layers, num_blocks, 2, kv_heads, block_size, D], keys before values: the keys
    (or values) of one head and block are contiguous. A cache of float8_e4m3fn holds keys and values divided by the
    scale of their layer and head (`AttentionSpec.kv_scales`); quotients beyond +-448 are clamped to +-448."""

    def __init__(self, spec: AttentionSpec, staging: StepStaging) -> None:
        # Importing Triton takes a good part of a second, and the backends for CPUs do not need it.
        from inflight_engine.execution.attention.triton_cache import write_kv

        self._write_kv = write_kv
        self._spec = spec
        shape = spec.shape
        self._scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
        cache_shape = (shape.num_layers, spec.num_blocks, 2, shape.num_kv_heads, spec.block_size, shape.head_dim)
        self._cache = zeros(cache_shape, spec.cache_dtype, spec.device)
        self._cache_bytes = self._cache.view(torch.uint8)
        if spec.kv_scales is None:
            self._kv_scales = torch.ones(shape.num_layers, 2, shape.num_kv_heads, device=spec.device)
        else:
            self._kv_scales = spec.kv_scales
        self._staging = staging

    def prepare(self, batch: AttentionBatch, shape: StepShape | None = None) -> None:
        self._step = self._staging.send(batch, shape)

    def forward(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self._write_kv(keys, values, self._cache[layer], self._kv_scales[layer], self._step.kv_slots)
        return self._attend(layer, queries, self._step)

    def blocks(self) -> torch.Tensor:
        return self._cache_bytes.flatten(2).movedim(1, 0)

    @abstractmethod
    def _attend(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        """Return [T, heads * D] for queries [T, heads, D]; the step's keys and values are in the cache."""


def why_no_triton(spec: AttentionSpec) -> str | None:
    """Return the reason why the Triton kernels, among them the one that writes the cache, cannot serve a spec, as the
    end of "... cannot be used: "; None: they can."""
    if spec.cache_dtype not in (spec.dtype, torch.float8_e4m3fn):
        return f"it keeps keys and values in {spec.dtype} or float8_e4m3fn, not in {spec.cache_dtype}"
    if spec.device.type == "cuda":
        capability = torch.cuda.get_device_capability(spec.device)
        if capability < (8, 0):
            return f"it needs a GPU of compute capability 8.0 (this one has {capability[0]}.{capability[1]})"
        if spec.cache_dtype == torch.float8_e4m3fn and capability < (8, 9):
            return f"fp8 needs a GPU of compute capability 8.9 (this one has {capability[0]}.{capability[1]})"
    return None

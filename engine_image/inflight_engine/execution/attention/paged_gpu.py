"""Common parts of the attention backends for GPUs: the cache, a step's inputs on the device, copies of blocks."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod

import torch

from inflight_engine.execution.attention.base import AttentionBackend, AttentionBatch, AttentionSpec, StepShape
from inflight_engine.execution.attention.gpu_step import GpuStep, StepStaging
from inflight_engine.execution.memory.zeros import zeros


class PagedGpuBackend(AttentionBackend):
    """A cache in device memory, [layers, num_blocks, 2, kv_heads, block_size, D], keys before values: what one head
    reads of a block is contiguous. A cache of float8_e4m3fn holds keys and values divided by the scale of their layer
    and head (`AttentionSpec.kv_scales`); quotients beyond +-448 are kept as +-448."""

    def __init__(self, spec: AttentionSpec, staging: StepStaging) -> None:
        # Triton takes a good part of a second to import, so only who needs it does.
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
        """[T, heads * D] of queries [T, heads, D]; the step's keys and values are in the cache."""


class FlashBackend(PagedGpuBackend):
    """FlashAttention's kernels (Dao et al. 2022), from a library: one call for the decodes, one for the chunks."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec, StepStaging(spec, gathers=True))
        # The kernels take [num_blocks, block_size, kv_heads, D] of any strides but the last.
        self._keys = [layer[:, 0].transpose(1, 2) for layer in self._cache]
        self._values = [layer[:, 1].transpose(1, 2) for layer in self._cache]

    def _attend(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        rows = step.num_rows
        if not step.num_chunks:
            return self._decode(layer, queries, step).flatten(1)
        mixed = self._prefill(layer, queries, step)  # has rows for the decodes, which it leaves as they are
        if rows:
            mixed[:rows] = self._decode(layer, queries[:rows], step)
        return mixed.flatten(1)

    def _window(self, layer: int) -> tuple[int, int]:
        """(tokens before the query that it sees, tokens after it); -1: all."""
        window = self._spec.shape.sliding_windows[layer]
        return (-1 if window is None else window - 1, 0)

    @abstractmethod
    def _decode(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        """[rows, heads, D] of queries [rows, heads, D]."""

    @abstractmethod
    def _prefill(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        """[T, heads, D] of queries [T, heads, D]: the chunks' rows of it; the others hold anything."""


def why_no_triton(spec: AttentionSpec) -> str | None:
    """Why Triton kernels cannot run for a spec, the one that writes the cache among them; None: they can."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if spec.cache_dtype not in (spec.dtype, torch.float8_e4m3fn):
        return f"it keeps keys and values in {spec.dtype} or float8_e4m3fn, not in {spec.cache_dtype}"
    if spec.device.type == "cuda":
        capability = torch.cuda.get_device_capability(spec.device)
        if capability < (8, 0):
            return f"it needs a GPU of compute capability 8.0 (this one has {capability[0]}.{capability[1]})"
        if spec.cache_dtype == torch.float8_e4m3fn and capability < (8, 9):
            return f"fp8 needs a GPU of compute capability 8.9 (this one has {capability[0]}.{capability[1]})"
    return None


def why_no_flash(spec: AttentionSpec) -> str | None:
    """Why FlashAttention's kernels cannot serve a spec here, whichever library has them; None: they can."""
    shape = spec.shape
    if spec.device.type != "cuda":
        return "it needs a GPU"
    if spec.dtype not in (torch.float16, torch.bfloat16):
        return f"it computes in float16 and bfloat16, not in {spec.dtype}"
    if spec.cache_dtype != spec.dtype:
        # FlashAttention 3 scales keys and values in fp8, but only for queries in fp8, which lose bits in every step.
        return f"it takes queries, keys and values of one dtype, not {spec.dtype} with {spec.cache_dtype}"
    if shape.head_dim > 256 or shape.head_dim % 8:
        return f"it has heads of up to 256 dimensions, a multiple of 8, not {shape.head_dim}"
    if spec.batch_invariant:
        return "its decodes and its prefill differ in the last bits"
    return why_no_triton(spec)

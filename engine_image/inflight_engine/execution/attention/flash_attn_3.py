"""Paged attention by FlashAttention-3 (Shah et al. 2024), which is written for Hopper's tensor cores.

The distribution flash-attn-3, built from https://github.com/Dao-AILab/flash-attention/tree/main/hopper, has the module
flash_attn_interface.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any

import torch

from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.attention.gpu_step import GpuStep, StepStaging
from inflight_engine.execution.attention.paged_gpu import PagedGpuBackend, why_no_triton

_MODULE = "flash_attn_interface"
_PARAMETERS = {
    *("cache_seqlens", "page_table", "cu_seqlens_q", "max_seqlen_q"),
    *("softmax_scale", "causal", "window_size", "softcap"),
}
"""Arguments that the engine passes to `flash_attn_with_kvcache`."""


class FlashAttn3Backend(PagedGpuBackend):
    """Attends by `flash_attn_with_kvcache`: one call for the decodes, one for the chunks. Blocks may have any size."""

    name = "flash-attn-3"

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        if importlib.util.find_spec(_MODULE) is None:
            return "the package flash-attn-3 is not installed"
        head_dim = spec.shape.head_dim
        if spec.device.type != "cuda":
            return "it needs a GPU"
        if spec.dtype not in (torch.float16, torch.bfloat16):
            return f"it computes in float16 and bfloat16, not in {spec.dtype}"
        if spec.cache_dtype != spec.dtype:
            # It scales keys and values in fp8, but only for queries in fp8, which lose bits in every step.
            return f"it takes queries, keys and values of one dtype, not {spec.dtype} with {spec.cache_dtype}"
        if head_dim > 256 or head_dim % 8:
            return f"it has heads of up to 256 dimensions, a multiple of 8, not {head_dim}"
        if spec.batch_invariant:
            return "its decodes and its prefill differ in the last bits"
        if (reason := why_no_triton(spec)) is not None:
            return reason
        capability = torch.cuda.get_device_capability(spec.device)
        if capability != (9, 0):
            return f"it needs a GPU of compute capability 9.0 (this one has {capability[0]}.{capability[1]})"
        try:
            function = getattr(_library(), "flash_attn_with_kvcache", None)
        except (ImportError, OSError) as error:
            return f"the package flash-attn-3 cannot be imported ({error})"
        if function is None or not inspect.signature(function).parameters.keys() >= _PARAMETERS:
            return "the package flash-attn-3 has another interface than that of version 3.0"
        return None

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec, StepStaging(spec, gathers=True))
        # The kernels take [num_blocks, block_size, kv_heads, D] of any strides but the last.
        self._keys = [layer[:, 0].transpose(1, 2) for layer in self._cache]
        self._values = [layer[:, 1].transpose(1, 2) for layer in self._cache]
        self._flash = _library().flash_attn_with_kvcache
        self._softcap = spec.shape.softcap or 0.0

    def _attend(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        rows = step.num_rows
        if not step.num_chunks:
            return self._call(layer, queries[:, None], step, slice(rows)).flatten(1)
        chunks: dict[str, torch.Tensor | int] = {"cu_seqlens_q": step.chunk_starts, "max_seqlen_q": step.longest_chunk}
        mixed = self._call(layer, queries, step, slice(rows, None), **chunks)  # leaves the decodes' rows as they are
        if rows:
            mixed[:rows] = self._call(layer, queries[:rows, None], step, slice(rows))[:, 0]
        return mixed.flatten(1)

    def _call(
        self, layer: int, queries: torch.Tensor, step: GpuStep, sequences: slice, **packing: torch.Tensor | int
    ) -> torch.Tensor:
        """Attend for some of the step's sequences.

        Args:
            queries: [sequences, 1, heads, D]; with `packing`, which gives the place of each sequence, [T, heads, D].

        Returns:
            The shape of the queries; rows outside the sequences hold anything.
        """
        window = self._spec.shape.sliding_windows[layer]
        mixed: torch.Tensor = self._flash(
            queries,
            self._keys[layer],
            self._values[layer],
            cache_seqlens=step.context_lens[sequences],
            page_table=step.block_table[sequences],
            **packing,
            softmax_scale=self._scale,
            causal=True,
            window_size=(-1 if window is None else window - 1, 0),  # tokens before and after the query; -1: all
            softcap=self._softcap,
        )
        return mixed


def _library() -> Any:
    return importlib.import_module(_MODULE)

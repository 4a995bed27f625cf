"""Paged attention by FlashAttention-3 (Shah et al. 2024), which is written for Hopper's tensor cores.

The distribution flash-attn-3, built of https://github.com/Dao-AILab/flash-attention/tree/main/hopper, has the module
flash_attn_interface.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any

import torch

from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.attention.gpu_step import GpuStep
from inflight_engine.execution.attention.paged_gpu import FlashBackend, why_no_flash

_MODULE = "flash_attn_interface"
_PARAMETERS = {
    *("cache_seqlens", "page_table", "cu_seqlens_q", "max_seqlen_q"),
    *("softmax_scale", "causal", "window_size", "softcap"),
}
"""Of its function for paged keys: those that are passed here."""


class FlashAttn3Backend(FlashBackend):
    """See the module. It takes blocks of any size."""

    name = "flash-attn-3"
    captures_chunks = True

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        if importlib.util.find_spec(_MODULE) is None:
            return "the package flash-attn-3 is not installed"
        reason = why_no_flash(spec)
        if reason is not None:
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
        super().__init__(spec)
        self._flash = _library().flash_attn_with_kvcache
        self._softcap = spec.shape.softcap or 0.0

    def _decode(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        rows = step.num_rows
        mixed: torch.Tensor = self._flash(
            queries[:, None],
            self._keys[layer],
            self._values[layer],
            cache_seqlens=step.context_lens[:rows],
            page_table=step.block_table[:rows],
            softmax_scale=self._scale,
            causal=True,
            window_size=self._window(layer),
            softcap=self._softcap,
        )
        return mixed[:, 0]

    def _prefill(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        rows = step.num_rows
        mixed: torch.Tensor = self._flash(
            queries,
            self._keys[layer],
            self._values[layer],
            cache_seqlens=step.context_lens[rows:],
            page_table=step.block_table[rows:],
            cu_seqlens_q=step.chunk_starts,
            max_seqlen_q=step.longest_chunk,
            softmax_scale=self._scale,
            causal=True,
            window_size=self._window(layer),
            softcap=self._softcap,
        )
        return mixed


def _library() -> Any:
    return importlib.import_module(_MODULE)

"""Paged attention by the package flash-attn, version 2 (https://github.com/Dao-AILab/flash-attention)."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any

import torch

from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.attention.gpu_step import GpuStep
from inflight_engine.execution.attention.paged_gpu import FlashBackend, why_no_flash


class FlashAttnBackend(FlashBackend):
    """See the module."""

    name = "flash-attn"

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        if importlib.util.find_spec("flash_attn") is None:
            return "the package flash-attn is not installed"
        reason = why_no_flash(spec)
        if reason is not None:
            return reason
        try:
            library = _library()
        except ImportError as error:
            return f"the package flash-attn cannot be imported ({error})"
        for name in ("flash_attn_with_kvcache", "flash_attn_varlen_func"):
            function = getattr(library, name, None)
            if function is None or not {"block_table", "softcap"} <= inspect.signature(function).parameters.keys():
                return "it needs version 2.6 or later of the package flash-attn, with the interface of version 2"
        return None

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self._library = _library()
        self._softcap = spec.shape.softcap or 0.0

    def _decode(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        rows = step.num_rows
        window = self._window(layer)
        mixed: torch.Tensor = self._library.flash_attn_with_kvcache(
            queries[:, None],
            self._keys[layer],
            self._values[layer],
            cache_seqlens=step.context_lens[:rows],
            block_table=step.block_table[:rows],
            softmax_scale=self._scale,
            # The last token sees all before it without a mask too, and only so the heads that share a key/value head
            # become the rows of one product.
            window_size=window if window[0] >= 0 else (-1, -1),
            softcap=self._softcap,
        )
        return mixed[:, 0]

    def _prefill(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        mixed: torch.Tensor = self._library.flash_attn_varlen_func(
            queries,
            self._keys[layer],
            self._values[layer],
            cu_seqlens_q=step.chunk_starts,
            cu_seqlens_k=step.chunk_contexts,
            max_seqlen_q=step.longest_chunk,
            max_seqlen_k=self._spec.max_model_len,
            softmax_scale=self._scale,
            causal=True,
            window_size=self._window(layer),
            softcap=self._softcap,
            block_table=step.block_table[step.num_rows :],
        )
        return mixed


def _library() -> Any:
    return importlib.import_module("flash_attn")

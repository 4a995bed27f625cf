"""Paged attention by the FlashAttention-2 kernels that torch carries, from torch 2.13.

They are what `torch.nn.attention.varlen.varlen_attn` calls. It is called here without that module, whose import brings
torch's compiler along, seconds of it, and which may take another library's kernels instead.
"""

from __future__ import annotations

import torch

from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.attention.gpu_step import GpuStep
from inflight_engine.execution.attention.paged_gpu import FlashBackend, why_no_flash


class TorchVarlenBackend(FlashBackend):
    """See the module."""

    name = "torch-varlen"
    preferred_block_size = 256

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        # 2.12 has the parameters too, but for another library's kernels only. (A TorchVersion compares as versions do.)
        if torch.__version__ < "2.13":
            return f"paged keys came with torch 2.13, and this is {torch.__version__}"
        if spec.shape.softcap is not None:
            return "it has no soft caps"
        if spec.block_size % cls.preferred_block_size:
            return f"it needs a block_size that is a multiple of 256, not {spec.block_size}"
        return why_no_flash(spec)

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self._decode_starts = torch.arange(spec.max_num_seqs + 1, dtype=torch.int32, device=spec.device)
        self._grouped = spec.shape.num_heads > spec.shape.num_kv_heads

    def _decode(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        rows = step.num_rows
        window = self._window(layer)
        if window[0] < 0:
            # The last token sees all before it without a mask too, and only so the heads that share a key/value head
            # become the rows of one product.
            window = (-1, -1)
        # Their step that joins the shares of a split sequence takes a batch of sequences of equal length, which only
        # such products are.
        splits = None if self._grouped and window[0] < 0 else 1
        return self._attention(
            layer,
            queries,
            self._decode_starts[: rows + 1],
            self._decode_starts[: rows + 1],
            1,
            step.context_lens[:rows],
            step.block_table[:rows],
            window,
            splits,
        )

    def _prefill(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        rows = step.num_rows
        return self._attention(
            layer,
            queries,
            step.chunk_starts,
            step.chunk_contexts,
            step.longest_chunk,
            step.context_lens[rows:],
            step.block_table[rows:],
            self._window(layer),
            1,
        )

    def _attention(
        self,
        layer: int,
        queries: torch.Tensor,
        starts: torch.Tensor,
        key_starts: torch.Tensor,
        longest: int,
        context_lens: torch.Tensor,
        block_table: torch.Tensor,
        window: tuple[int, int],
        splits: int | None,
    ) -> torch.Tensor:
        """`key_starts` has to be there, but `context_lens` says what is looked at."""
        mixed: torch.Tensor = torch.ops.aten._flash_attention_forward(
            queries,
            self._keys[layer],
            self._values[layer],
            starts,
            key_starts,
            longest,
            self._spec.max_model_len,
            0.0,
            window == (-1, 0),
            False,
            scale=self._scale,
            window_size_left=window[0],
            window_size_right=window[1],
            seqused_k=context_lens,
            block_table=block_table,
            num_splits=splits,
        )[0]
        return mixed

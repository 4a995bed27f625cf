"""Paged attention by our own Triton kernels, which need nothing but torch and Triton."""

from __future__ import annotations

import os

import torch

from inflight_engine.execution.attention.base import AttentionSpec
from inflight_engine.execution.attention.gpu_step import GpuStep, StepStaging
from inflight_engine.execution.attention.paged_gpu import PagedGpuBackend, why_no_triton
from inflight_engine.execution.attention.triton_tiles import SplitPlan, decode_tiles, prefill_tiles, split_plan

_INTERPRETED_MULTIPROCESSORS = 2
"""Number of multiprocessors assumed on a CPU, so small that some sequences have one program and others several."""
_INTERPRETED_SHARED_MEMORY = 228 << 10


class TritonBackend(PagedGpuBackend):
    """See the module. On CPU it runs in Triton's interpreter only, which is for tests.

    With `batch_invariant` one kernel computes decodes and chunks alike, so that a token's result is the same to the
    last bit whether it came in a prompt, in whichever chunk, as a decode, or again after a preemption. Decodes pay:
    no sequence is shared by several programs.
    """

    name = "triton"

    @classmethod
    def why_not(cls, spec: AttentionSpec) -> str | None:
        if spec.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            return "it needs a GPU"
        if spec.shape.head_dim > 256:
            return f"it has heads of up to 256 dimensions, not {spec.shape.head_dim}"
        if spec.shape.num_heads // spec.shape.num_kv_heads > 128:
            return "more than 128 query heads share a key/value head"
        return why_no_triton(spec)

    def __init__(self, spec: AttentionSpec) -> None:
        from inflight_engine.execution.attention.triton_decode import decode
        from inflight_engine.execution.attention.triton_prefill import prefill

        shape = spec.shape
        self._group = shape.num_heads // shape.num_kv_heads
        self._num_multiprocessors, shared_memory = _chip(spec.device)
        tile_arguments = (shape.head_dim, self._group, spec.dtype.itemsize, shared_memory)
        self._decode_tiles = decode_tiles(*tile_arguments)
        self._prefill_tiles = prefill_tiles(*tile_arguments)
        staging = StepStaging(
            spec,
            tile_queries=self._prefill_tiles.queries(self._group),
            decode_tiles=spec.batch_invariant,
        )
        super().__init__(spec, staging)
        self._decode, self._prefill = decode, prefill
        self._softcap = shape.softcap or 0.0
        # What the programs that share a sequence found; at one address for all graphs, which never run at once.
        shares = max(rows * self._plan(rows).num_splits for rows in range(1, spec.max_num_seqs + 1)) * shape.num_heads
        self._partials = torch.empty(shares * shape.head_dim, dtype=torch.float32, device=spec.device)
        self._partial_stats = torch.empty(shares * 2, dtype=torch.float32, device=spec.device)

    def _plan(self, rows: int) -> SplitPlan:
        spec = self._spec
        return split_plan(
            rows,
            spec.shape.num_kv_heads,
            self._num_multiprocessors,
            spec.max_model_len,
            self._decode_tiles.keys,
        )

    def _attend(self, layer: int, queries: torch.Tensor, step: GpuStep) -> torch.Tensor:
        cache, scales = self._cache[layer], self._kv_scales[layer]
        window = self._spec.shape.sliding_windows[layer] or 0
        num_tokens, heads, head_dim = queries.shape
        out = queries.new_empty(num_tokens, heads * head_dim)
        if step.num_rows and not self._spec.batch_invariant:
            self._decode(
                queries,
                cache,
                scales,
                step.block_table,
                step.slots,
                step.context_lens,
                out,
                self._partials,
                self._partial_stats,
                rows=step.num_rows,
                scale=self._scale,
                window=window,
                softcap=self._softcap,
                plan=self._plan(step.num_rows),
                tiles=self._decode_tiles,
            )
        if len(step.query_tiles):
            self._prefill(
                queries,
                cache,
                scales,
                step.block_table,
                step.query_tiles,
                out,
                scale=self._scale,
                window=window,
                softcap=self._softcap,
                invariant=self._spec.batch_invariant,
                tiles=self._prefill_tiles,
            )
        return out


def _chip(device: torch.device) -> tuple[int, int]:
    """Return (number of multiprocessors, bytes of shared memory that a program can have)."""
    if device.type != "cuda":
        return _INTERPRETED_MULTIPROCESSORS, _INTERPRETED_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.shared_memory_per_block_optin

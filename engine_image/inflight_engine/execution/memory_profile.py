"""How much of a GPU a step takes beside weights and KV cache: measured at start, on the largest one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from inflight_engine.execution.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    ChunkSpan,
    StepShape,
)
from inflight_engine.execution.forward import Forward
from inflight_engine.execution.graphs import CudaCapture, StepGraphs
from inflight_engine.execution.memory.kv_size import GpuMemory
from inflight_engine.execution.memory.staging import Staging, step_bytes
from inflight_engine.execution.sampling.draws import DrawBatch, draw, likeliest
from inflight_engine.execution.token_feed import TokenFeed
from inflight_engine.models.protocol import Model


def measure(
    model: Model,
    backend: Callable[[AttentionSpec], AttentionBackend],
    spec: AttentionSpec,
    shapes: tuple[StepShape, ...],
) -> GpuMemory:
    """Run the largest step and capture the two largest graphs, on a cache just large enough; nothing of it stays.

    The graphs share one pool, so each but the first adds only its own bookkeeping: that of the second stands for all.

    Args:
        spec: its `num_blocks` does not matter.
        shapes: of the graphs that there will be, ascending; empty: none.
    """
    device = spec.device
    small = replace(spec, num_blocks=blocks_of_largest_step(spec))
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    attention = backend(small)
    run_largest_step(model, attention, small)
    torch.cuda.synchronize(device)
    cache = small.num_blocks * spec.block_size * spec.shape.kv_bytes_per_token(spec.cache_dtype.itemsize)
    activations = max(0, torch.cuda.max_memory_reserved(device) - before - cache)
    graphs = _measure_graphs(model, attention, small, shapes) if shapes else 0
    del attention
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return GpuMemory(total=total, used=total - free, activations=activations, graphs=graphs)


def blocks_of_largest_step(spec: AttentionSpec) -> int:
    """Blocks of one of its chunks; all chunks use the same."""
    return -(-min(spec.max_num_batched_tokens, spec.max_model_len) // spec.block_size)


def largest_batch(spec: AttentionSpec) -> AttentionBatch:
    """`max_num_batched_tokens` in chunks as long as sequences can be, of at most `max_num_seqs` sequences."""
    lengths = [spec.max_model_len] * (spec.max_num_batched_tokens // spec.max_model_len)
    lengths += [rest] if (rest := spec.max_num_batched_tokens % spec.max_model_len) else []
    lengths = lengths[: spec.max_num_seqs]
    firsts = np.cumsum([0, *lengths])
    chunks = tuple(
        ChunkSpan(slot, int(first), length, 0)
        for slot, (first, length) in enumerate(zip(firsts, lengths, strict=False))
    )
    kv_slots = np.concatenate([np.arange(length) for length in lengths])
    blocks = np.tile(np.arange(blocks_of_largest_step(spec)), (len(lengths), 1))
    nobody = np.empty(0, np.int64)
    return AttentionBatch(kv_slots, nobody, nobody, chunks, blocks, changed_cells=np.arange(blocks.size))


@torch.inference_mode()
def run_largest_step(model: Model, attention: AttentionBackend, spec: AttentionSpec) -> None:
    """Forward `max_num_batched_tokens` tokens, and draw for every slot from filtered logits, which takes the most."""
    batch = largest_batch(spec)
    positions = torch.from_numpy(batch.kv_slots).to(spec.device)
    attention.prepare(batch)
    hidden = model.hidden_states(torch.zeros_like(positions), positions, attention)
    num_drawn = min(spec.max_num_seqs, len(positions))
    ones = np.ones(num_drawn)
    draws = DrawBatch(
        ones, ones * 0.01, np.zeros(num_drawn, np.int64), ones * 0.9, ones.astype(np.uint64), ones.astype(int)
    )
    draw(model.logits(hidden[:num_drawn]), draws)


def _measure_graphs(
    model: Model, attention: AttentionBackend, spec: AttentionSpec, shapes: tuple[StepShape, ...]
) -> int:
    device = spec.device
    left = [torch.cuda.mem_get_info(device)[0]]
    capture = CudaCapture()

    def metered(step: Callable[[], None]) -> Callable[[], None]:
        replay = capture(step)
        left.append(torch.cuda.mem_get_info(device)[0])
        return replay

    staging = Staging(step_bytes(spec.max_num_seqs, spec.max_num_batched_tokens), device, copies=True)
    feed = TokenFeed(spec.max_num_seqs, device)
    forward = Forward(model, attention, feed, staging)
    graphs = StepGraphs(model, forward, feed, likeliest, shapes[-2:], spec.shape.vocab_size, device)
    return graph_bytes(left, len(shapes)) if graphs.try_capture(metered) else 0


def graph_bytes(left: list[int], num_graphs: int) -> int:
    """What all graphs take, from the memory that was left before the first capture and after each."""
    taken = [max(0, before - after) for before, after in pairwise(left)]
    return taken[0] + sum(taken[1:2]) * (num_graphs - 1)

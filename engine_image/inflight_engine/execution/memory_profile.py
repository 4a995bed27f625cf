"""Memory of a step on a GPU beside weights and KV cache, measured at start on the largest step."""

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
from inflight_engine.execution.sampling.logprobs import rows_at_once
from inflight_engine.execution.sampling.prompt_logprobs import score_prompts
from inflight_engine.execution.sampling.sampler import Sampler, make_sampler
from inflight_engine.execution.token_feed import TokenFeed
from inflight_engine.models.protocol import Model
from inflight_engine.request import NO_TOKENS, SamplingParams
from inflight_engine.scheduling.plan import SlotStart, StepPlan

_LARGEST_SAMPLING = SamplingParams(
    1,
    temperature=1.0,
    min_p=0.01,
    top_p=0.9,
    top_k=50,
    presence_penalty=0.1,
    logprobs=20,
    logit_bias=((0, 1.0),),
    prompt_logprobs=20,
)


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
        shapes: shapes of the graphs that will be captured, ascending; empty: none.
    """
    device = spec.device
    small = replace(spec, num_blocks=blocks_of_largest_step(spec))
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    attention = backend(small)
    sampler = make_sampler(spec.max_num_seqs, spec.shape.vocab_size, device)
    run_largest_step(model, attention, sampler, small)
    torch.cuda.synchronize(device)
    cache = small.num_blocks * spec.block_size * spec.shape.kv_bytes_per_token(spec.cache_dtype.itemsize)
    activations = max(0, torch.cuda.max_memory_reserved(device) - before - cache)
    graphs = _measure_graphs(model, attention, sampler, small, shapes) if shapes else 0
    del attention, sampler
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return GpuMemory(total=total, used=total - free, activations=activations, graphs=graphs)


def blocks_of_largest_step(spec: AttentionSpec) -> int:
    """Return the number of blocks of one chunk of the largest step; all of its chunks use the same blocks."""
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
    no_decodes = np.empty(0, np.int64)
    return AttentionBatch(kv_slots, no_decodes, no_decodes, chunks, blocks, changed_cells=np.arange(blocks.size))


@torch.inference_mode()
def run_largest_step(model: Model, attention: AttentionBackend, sampler: Sampler, spec: AttentionSpec) -> None:
    """Forward `max_num_batched_tokens` tokens, draw for every slot from filtered and penalised logits and report the
    log-probabilities of each, which takes the most; then score a slice of prompt tokens."""
    batch = largest_batch(spec)
    positions = torch.from_numpy(batch.kv_slots).to(spec.device)
    attention.prepare(batch)
    hidden = model.hidden_states(torch.zeros_like(positions), positions, attention)
    slots = np.arange(min(spec.max_num_seqs, len(positions)))
    starts = tuple(
        SlotStart(slot, slot, NO_TOKENS, 0, 0, _LARGEST_SAMPLING, np.empty(0, np.int32), ()) for slot in slots.tolist()
    )
    sampler.apply(StepPlan(0, (), (), starts, None, (), slots, 0))
    logits = model.logits(hidden[: len(slots)])
    slots_on_device = torch.from_numpy(slots).to(spec.device)
    token_ids = sampler.choose(logits, slots_on_device, slots_on_device)
    sampler.report(logits, token_ids, slots)
    vocab_size = spec.shape.vocab_size
    prompt = np.zeros(min(rows_at_once(vocab_size), len(hidden)), np.int64)
    score_prompts(model.logits, hidden[: len(prompt)], prompt, _LARGEST_SAMPLING.prompt_logprobs or 0, vocab_size)


def _measure_graphs(
    model: Model, attention: AttentionBackend, sampler: Sampler, spec: AttentionSpec, shapes: tuple[StepShape, ...]
) -> int:
    device = spec.device
    left = [torch.cuda.mem_get_info(device)[0]]
    capture = CudaCapture()

    # Each shape has two graphs.
    def metered(step: Callable[[], None]) -> Callable[[], None]:
        replay = capture(step)
        left.append(torch.cuda.mem_get_info(device)[0])
        return replay

    staging = Staging(step_bytes(spec.max_num_seqs, spec.max_num_batched_tokens), device, copies=True)
    feed = TokenFeed(spec.max_num_seqs, device)
    forward = Forward(model, attention, feed, staging)
    graphs = StepGraphs(model, forward, feed, sampler, shapes[-2:], spec.shape.vocab_size, device)
    return graph_bytes(left[::2], len(shapes)) if graphs.try_capture(metered) else 0


def graph_bytes(left: list[int], num_shapes: int) -> int:
    """Return the bytes of all graphs, from the memory that was left before the first shape and after each."""
    taken = [max(0, before - after) for before, after in pairwise(left)]
    return taken[0] + sum(taken[1:2]) * (num_shapes - 1)

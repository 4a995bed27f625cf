"""Rates at which an engine computes tokens between two samples."""

from __future__ import annotations

from inflight_gateway.pick.replica_state import DEFAULT_COST, decode_work
from inflight_gateway.types import EngineSample

FULL_KV = 0.9
"""KV utilization above which requests that wait do so for blocks, not for their turn to be computed."""


def waits_for_blocks(sample: EngineSample) -> bool:
    """Whether requests in the engine wait for KV blocks."""
    return sample.waiting > 0 and sample.kv_utilization >= FULL_KV


def prefill_tokens_per_second(sample: EngineSample) -> float:
    """Prompt tokens in full steps, beside the decodes of the sample; 0 while the engine waits for KV blocks.

    An engine without a cost model counts as fast: if it is not, the next sample shows the excess, while an idle engine
    would go unnoticed.
    """
    if waits_for_blocks(sample):
        return 0.0
    decoding = decode_work(sample, sample.running)
    room = max(1.0, sample.max_num_batched_tokens - decoding.decode_seqs)
    attended = sample.waiting_prompt_tokens / max(1, sample.waiting) / 2
    step = decoding._replace(prefill_tokens=room, prefill_context_tokens=room * attended)
    return room / (sample.cost or DEFAULT_COST).seconds(step)


def answer_tokens_per_second(sample: EngineSample) -> float:
    """Output tokens of each running request, without prefill beside them. Same default for the cost."""
    return 1.0 / (sample.cost or DEFAULT_COST).seconds(decode_work(sample, max(1, sample.running)))

"""Steps before requests come: one is measured, so that a hang in the first requests is seen soon, and on a GPU others
reach every kernel, so that no request waits while one is compiled."""

from __future__ import annotations

import time

import numpy as np

from inflight_cost.model import StepWork
from inflight_engine.request import SamplingParams
from inflight_engine.runner_info import RunnerInfo
from inflight_engine.scheduling.plan import PrefillChunk, Slots, SlotStart, StepPlan
from inflight_engine.step_executor import StepExecutor
from inflight_engine.step_work import work_of
from inflight_settings.limits import Limits

_NO_SLOTS = np.empty(0, np.intp)

_LONG_STEP = 1024
"""Tokens of a step that is too long to run as a graph."""

_ALL_ASKED = SamplingParams(
    max_tokens=3,
    temperature=0.7,
    top_p=0.9,
    top_k=20,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias=((0, 1.0),),
    logprobs=1,
)


def warm_up(runner: StepExecutor, num_tokens: int, block_size: int) -> tuple[StepWork, float]:
    """Prefill a prompt of `num_tokens`, at most what one step and the KV cache can take, twice: the first time includes
    what is done only once. It uses slot 0 and the first blocks, and leaves nothing behind: a request writes its keys
    and values before it reads them.

    Returns:
        What there was to compute, and the seconds that it took the second time.
    """
    blocks = np.arange(-(-num_tokens // block_size), dtype=np.int32)
    prompt = np.zeros(num_tokens, np.int32)
    start = SlotStart(0, -1, prompt, num_tokens, 0, SamplingParams(max_tokens=1), blocks, ())
    chunk = PrefillChunk(0, 0, num_tokens, samples=True)
    prefill = StepPlan(0, (), (), (start,), None, (chunk,), _NO_SLOTS, num_tokens)
    release = StepPlan(0, (), (0,), (), None, (), _NO_SLOTS, 0)
    seconds = 0.0
    for _ in range(2):
        begun = time.monotonic()
        runner.launch(prefill)
        runner.collect()
        seconds = time.monotonic() - begun
        runner.launch(release)
        runner.collect()
    return work_of(prefill, 0, block_size), seconds


def reach_kernels(runner: StepExecutor, info: RunnerInfo, capacity: Limits) -> None:
    """Run steps of every kind: a long prefill, a decode, both together; tokens that are drawn with everything that a
    request may ask for, and plainly. Graphs, which are captured before, cover small steps without their
    log-probabilities, or nothing. Kernels are compiled for the model and for tensors' dtypes and strides, never for how
    many tokens or rows there are, so one step of a kind is enough.

    It uses slots 0 and 1 and the first blocks, and leaves nothing behind.
    """
    num_tokens = min(_LONG_STEP, capacity.max_num_batched_tokens, info.max_model_len - 2)
    if num_tokens < 1:
        return  # a sequence cannot have a token more than its prompt
    decodes = np.zeros(1, np.intp)
    plans = [
        _prefill(0, num_tokens, _ALL_ASKED, info.block_size, decodes[:0]),
        StepPlan(0, (), (), (), None, (), decodes, 1),
    ]
    started: tuple[int, ...] = (0,)
    if capacity.max_num_seqs > 1 and capacity.max_num_batched_tokens > 1:
        beside = min(num_tokens, capacity.max_num_batched_tokens - 1)
        drawn = SamplingParams(max_tokens=1, temperature=1.0)
        plans.append(_prefill(1, beside, drawn, info.block_size, decodes))
        started = (0, 1)
    for plan in [*plans, StepPlan(0, (), started, (), None, (), _NO_SLOTS, 0)]:
        runner.launch(plan)
        runner.collect()


def _prefill(slot: int, num_tokens: int, sampling: SamplingParams, block_size: int, decodes: Slots) -> StepPlan:
    """Plan a slot's whole prompt, in the first blocks, beside decodes."""
    blocks = np.arange(-(-(num_tokens + 2) // block_size), dtype=np.int32)
    start = SlotStart(slot, -1, np.zeros(num_tokens, np.int32), num_tokens, 0, sampling, blocks, ())
    chunk = PrefillChunk(slot, 0, num_tokens, samples=True)
    return StepPlan(0, (), (), (start,), None, (chunk,), decodes, num_tokens + len(decodes))

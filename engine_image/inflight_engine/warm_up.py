"""Measures a first step before requests come, so that a hang in the first requests is seen soon."""

from __future__ import annotations

import time

import numpy as np

from inflight_cost.model import StepWork
from inflight_engine.request import SamplingParams
from inflight_engine.scheduling.plan import PrefillChunk, SlotStart, StepPlan
from inflight_engine.step_executor import StepExecutor
from inflight_engine.step_work import work_of

_NO_SLOTS = np.empty(0, np.intp)


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

"""A running engine's cost model: right within noise, soon after a change, whatever the load."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_cost.model import CostModel, StepWork, attended_tokens
from inflight_fit.online import HALF_LIFE_SECONDS, OnlineFit

GPU = CostModel(5.5e-3, 15e-6, 30e-6, 45e-9, 1.05e-9)
"""An 8B model on an H100-class GPU, by data sheets."""
CPU = CostModel(0, 0, 0, 3e-8, 1e-7, 0, ((1, 0.02), (8, 0.05), (15, 0.09), (16, 0.07), (64, 0.15), (512, 0.9)))


def works(rng, count, *, budget=2048, slots=200, arrivals=0.1, output=200, prompt=1200):
    """Work of the steps of a replica, from idle on: prompts in chunks, each followed by decodes."""
    contexts, waiting = [], []
    for _ in range(count):
        if rng.random() < arrivals:
            waiting.append([0, max(1, int(rng.expovariate(1 / prompt)))])
        room, prefill, attended, decodes, read = budget - len(contexts), 0, 0, len(contexts), sum(contexts)
        while waiting and room > 0 and len(contexts) < slots:
            start, length = waiting[0]
            chunk = min(room, length - start)
            prefill, room, attended = prefill + chunk, room - chunk, attended + attended_tokens(start, chunk)
            waiting[0][0] += chunk
            if start + chunk == length:
                contexts.append(waiting.pop(0)[1])
        contexts = [each + 1 for each in contexts if rng.random() > 1 / output]
        if decodes + prefill:
            yield StepWork(decodes, prefill, read, attended, 0)


def run(fit, true, steps, rng, now=0.0, noise=0.03, hiccups=0.01):
    """Observe steps that take what `true` says within noise; returns the clock after them."""
    for work in steps:
        seconds = true.seconds(work) * rng.lognormvariate(0, noise)
        if rng.random() < hiccups:
            seconds *= 3 + rng.random() * 20
        now += seconds
        fit.observe(work, seconds, now)
        if fit.due(now):
            fit.fit(now)
    return now


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    base=st.floats(1e-3, 5e-2),
    prefill=st.floats(1e-5, 1e-3),
    decode=st.floats(0, 1e-3),
    arrivals=st.floats(0.05, 0.4),
)
def test_steps_and_factors_of_a_linear_machine_are_found_under_noise_and_hiccups(seed, base, prefill, decode, arrivals):
    rng, fit = random.Random(seed), OnlineFit()
    true = CostModel(base, decode, prefill, prefill / 700, prefill / 30_000)
    now = run(fit, true, works(rng, 3000, arrivals=arrivals), rng)
    found = fit.fit(now)
    assert found.good
    assert found.error < 0.04
    assert found.model.prefill_token_s == pytest.approx(prefill, rel=0.15)
    steps = [*works(rng, 300, arrivals=arrivals)]
    errors = [abs(found.model.seconds(work) / true.seconds(work) - 1) for work in steps]
    assert np.median(errors) < 0.03
    assert max(errors) < 0.2


def test_a_machine_that_is_not_linear_gets_a_curve():
    rng, fit = random.Random(1), OnlineFit()
    now = run(fit, CPU, works(rng, 4000, budget=512, slots=32, arrivals=0.1, output=60, prompt=200), rng)
    found = fit.fit(now)
    assert found.model.curve
    assert found.error < 0.04
    for work in (*(StepWork(size, 0, 250 * size, 0) for size in (8, 15, 24)), StepWork(20, 480, 5000, 80_000)):
        assert found.model.seconds(work) == pytest.approx(CPU.seconds(work), rel=0.15), work


def test_a_machine_that_becomes_half_as_fast_is_followed_in_minutes():
    rng, fit = random.Random(2), OnlineFit()
    steps = works(rng, 100_000, arrivals=0.1)
    now = run(fit, GPU, (next(steps) for _ in range(20_000)), rng)
    slow = CostModel(*(2 * each for each in (GPU.base_s, GPU.decode_seq_s, GPU.prefill_token_s)), 9e-8, 2.1e-9)
    end = now + 4 * HALF_LIFE_SECONDS
    while now < end:
        now = run(fit, slow, (next(steps) for _ in range(100)), rng, now)
    found = fit.fit(now)
    errors = [abs(found.model.seconds(work) / slow.seconds(work) - 1) for work in (next(steps) for _ in range(500))]
    assert np.median(errors) < 0.05


def test_long_decoding_leaves_what_prompts_cost_and_a_pause_of_seconds_moves_nothing():
    rng, fit = random.Random(3), OnlineFit()
    now = run(fit, GPU, works(rng, 5000), rng)
    decodes = (StepWork(40, 0, 40 * 700 + each % 400, 0, 0) for each in range(200_000))
    now = run(fit, GPU, (next(decodes) for _ in range(150_000)), rng, now)
    slow = CostModel(*(3 * each for each in (GPU.base_s, GPU.decode_seq_s, GPU.prefill_token_s)), 1e-7, 2e-9)
    now = run(fit, slow, (next(decodes) for _ in range(300)), rng, now)
    found = fit.fit(now)
    for work in (StepWork(40, 0, 28_000, 0), StepWork(40, 1500, 28_000, 1_000_000)):
        assert found.model.seconds(work) == pytest.approx(GPU.seconds(work), rel=0.1)


def test_decoding_at_many_sizes_and_contexts_leaves_what_prompts_cost():
    fit, now = OnlineFit(), 0.0
    prompts = [StepWork(8, 64 << each, 8 * 500, (64 << each) * 300, 0) for each in range(5)] * 10
    sizes = [1, 2, 3, 4, 6, 8, 12, 15, 16, 20, 24, 31, 32, 48, 64, 96, 128, 192, 256]
    decodes = [StepWork(size, 0, size * 4**power, 0, 0) for size in sizes for power in range(2, 8)] * 3
    for work in prompts + decodes:
        now += 1.0
        fit.observe(work, GPU.seconds(work), now)
    found = fit.fit(now)
    for work in prompts[:5]:
        assert found.model.seconds(work) == pytest.approx(GPU.seconds(work), rel=0.2)


def test_there_is_no_model_before_some_steps_and_a_prompt():
    fit = OnlineFit()
    for second in range(20):
        fit.observe(StepWork(1, 0, 100, 0), 0.01, float(second))
    assert fit.fit(20.0) is None
    fit.observe(StepWork(0, 100, 0, 5050), 0.05, 21.0)
    assert fit.fit(21.0).steps == pytest.approx(21, rel=0.2)


def test_first_step_of_a_size_is_left_out_where_kernels_are_compiled():
    fit = OnlineFit(compiles=True)
    for second in range(10):
        for work in (StepWork(1, 0, 100, 0), StepWork(0, 100, 0, 5050)):
            fit.observe(work, 30.0 if second == 0 else 0.01, float(second))
    assert fit.fit(10.0).steps <= 18
    assert fit.fit(10.0).model.seconds(StepWork(0, 100, 0, 5050)) == pytest.approx(0.01)


def test_without_new_steps_no_fit_is_due():
    fit = OnlineFit()
    for second in range(20):
        fit.observe(StepWork(1, 10, 100, 55), 0.01, float(second))
    assert fit.due(20.0)
    assert fit.fit(20.0) is not None
    assert not fit.due(1e9)
    fit.observe(StepWork(1, 10, 100, 55), 0.01, 1e9)
    assert fit.due(1e9)

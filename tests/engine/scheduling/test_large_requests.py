"""A request of most of the KV cache: what those that fit beside it wait, and what it waits itself."""

import gc
import weakref

import numpy as np
import pytest

from inflight_engine.request import Request, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.limits import Limits
from inflight_settings.scheduling import ServiceClass

STEP_SECONDS = 0.043
EVERY = 25
"""Steps between two small requests, of 200 + 1,000 tokens: 40 of them run, and hold 28% of the cache."""
GIANT = 10_000


def waits(steps, giants, classes, tenant=""):
    """Steps until each request starts that came while nothing but the load of small ones was there, or with giants.

    Args:
        giants: steps at which a request of 80,000 tokens comes, of the last class.
        tenant: of the giants; the small ones have none.
    """
    scheduler = Scheduler(
        SchedulerConfig(
            Limits(64, 2048),
            num_blocks=6250,
            block_size=16,
            max_model_len=90_000,
            kv_headroom=0.03,
            prefix_caching=False,
            classes=classes,
            policy="fair" if tenant else "fcfs",
        )
    )
    arrived, waited = {}, {}

    def add(number, step, tokens, answer, scheduling):
        arrived[number] = step
        prompt = np.full(tokens, 1, np.int32)
        scheduler.add(
            Request(number, prompt, SamplingParams(max_tokens=answer), step * STEP_SECONDS, scheduling=scheduling)
        )

    for step in range(steps):
        if step % EVERY == 0:
            add(step, step, 200, 1000, Scheduling(classes[0].name))
        if step in giants:
            add(GIANT + step, step, 80_000, 8, Scheduling(classes[-1].name, tenant=tenant))
        plan = scheduler.schedule(step * STEP_SECONDS)
        if plan is None:
            continue
        for start in plan.starts:
            waited.setdefault(start.request_id, step - arrived[start.request_id])
        scheduler.update(plan, np.zeros(len(plan.sampled_slots), np.int32))
    return waited, arrived


WEIGHTED = (ServiceClass("interactive", weight=10.0), ServiceClass("batch", weight=0.1))


def test_a_giant_of_a_light_class_lets_a_heavy_class_start_at_once():
    steps, comes = 4000, 1500
    waited, arrived = waits(steps, {comes}, WEIGHTED)
    after = [waited.get(number, steps) for number, step in arrived.items() if number < GIANT and step >= comes]
    assert np.percentile(after, 95) <= 2


@pytest.mark.parametrize(
    ("classes", "tenant"),
    [((ServiceClass("interactive"), ServiceClass("batch")), ""), ((ServiceClass(),), "giant")],
    ids=["classes", "tenants"],
)
def test_a_giant_among_equals_starts_ten_seconds_and_two_answers_after_it_came_at_the_latest(classes, tenant):
    comes = 1500
    waited, arrived = waits(4000, {comes}, classes, tenant)
    starts = comes + waited[GIANT + comes]
    assert starts <= comes + 10 / STEP_SECONDS + 2 * 1000
    beside = [waited[number] for number, step in arrived.items() if number < GIANT and comes <= step < starts]
    assert np.median(beside) <= 2


def test_requests_that_passed_a_giant_are_forgotten_when_they_end():
    capacity = {"num_blocks": 1000, "block_size": 16, "max_model_len": 16_000, "prefix_caching": False}
    scheduler, short = Scheduler(SchedulerConfig(Limits(64, 2048), classes=WEIGHTED, **capacity)), []

    def add(number, tokens, answer, name):
        prompt = np.full(tokens, 1, np.int32)
        scheduler.add(Request(number, prompt, SamplingParams(answer), 0.0, scheduling=Scheduling(name)))
        return weakref.ref(prompt)

    giant = add(0, 7000, 3000, "interactive"), add(1, 15_000, 8, "batch")
    for step in range(200):
        if step > 3:
            short.append(add(GIANT + step, 100, 3, "interactive"))
        plan = scheduler.schedule(0.0)
        scheduler.update(plan, np.zeros(len(plan.sampled_slots), np.int32))
    gc.collect()
    assert all(each() is not None for each in giant)
    assert sum(each() is not None for each in short) < 10

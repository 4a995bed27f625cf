"""Requests of half of the KV cache and more: what those that have room beside them wait, and what they wait."""

import gc
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.request import FinishReason, Request, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.scheduler import Scheduler
from inflight_settings.limits import Limits
from inflight_settings.scheduling import ServiceClass
from tests.engine.scheduling.driver import Driver

STEP_SECONDS = 0.043
MINUTE = 1395
"""Steps."""
EVERY = 25
"""Steps between two small requests, of 200 + 1,000 tokens: 40 of them run, and hold 28% of the cache."""
ANSWER = 1000
GIANT = 10_000
"""Number of the first giant."""
BLOCKS, SIZE = 6250, 16


@dataclass(frozen=True)
class Sharing:
    """Who sends what. Attributes: small, giant: class and tenant; `{}` in it: each giant that comes has its own."""

    classes: tuple[ServiceClass, ...] = (ServiceClass(),)
    policy: str = "fcfs"
    small: tuple[str, str] = ("default", "")
    giant: tuple[str, str] = ("default", "")


EQUAL = ServiceClass("interactive"), ServiceClass("batch")
WEIGHTED = ServiceClass("interactive", weight=10.0), ServiceClass("batch", weight=0.1)
APART = {"small": ("interactive", ""), "giant": ("batch", "")}
SHARINGS = {
    "all alike": Sharing(),
    "a tenant": Sharing(policy="fair", giant=("default", "giant")),
    "several tenants": Sharing(policy="fair", giant=("default", "giant {}")),
    "a class": Sharing(EQUAL, **APART),
    "a class of less weight": Sharing(WEIGHTED, **APART),
    "a class with several tenants": Sharing(EQUAL, "fair", ("interactive", ""), ("batch", "giant {}")),
}


def waits(steps, giants, sharing, make=Scheduler, *, every=EVERY, small_answer=ANSWER):
    """Steps until each request starts, and the step at which it came. `giants`: by step, tokens of the prompts and
    answers that come."""
    scheduler = make(
        SchedulerConfig(
            Limits(64, 2048),
            num_blocks=BLOCKS,
            block_size=SIZE,
            max_model_len=90_000,
            kv_headroom=0.03,
            prefix_caching=False,
            classes=sharing.classes,
            policy=sharing.policy,
        )
    )
    arrived, started = {}, {}

    def add(number, step, tokens, answer, owner):
        arrived[number] = step
        prompt = np.full(tokens, 1, np.int32)
        scheduling = Scheduling(owner[0], tenant=owner[1].format(number % 3))
        scheduler.add(Request(number, prompt, SamplingParams(answer), step * STEP_SECONDS, scheduling=scheduling))

    number = GIANT
    for step in range(steps):
        if step % every == 0:
            add(step, step, 200, small_answer, sharing.small)
        for tokens, answer in giants.get(step, ()):
            add(number, step, tokens, answer, sharing.giant)
            number += 1
        if getattr(scheduler, "steady_steps", int)():
            scheduler.advance_many(1)
            continue
        plan = scheduler.schedule(step * STEP_SECONDS)
        if plan is not None:
            for start in plan.starts:
                started.setdefault(start.request_id, step)
            scheduler.update(plan, np.zeros(len(plan.sampled_slots), np.int32))
    return {each: started.get(each, steps) - step for each, step in arrived.items()}, arrived


def beside_waiting_giants(waited, arrived):
    """Returns the waits of the small requests that came while a giant waited, and those of the giants."""
    giants = [each for each in arrived if each >= GIANT]
    times = [(arrived[each], arrived[each] + waited[each]) for each in giants]
    small = [waited[n] for n, came in arrived.items() if n < GIANT and any(a <= came < b for a, b in times)]
    return small, [waited[each] for each in giants]


THREE_EACH_MINUTE = {
    1500 + MINUTE * minute + each: [(BLOCKS * SIZE // 2, 400)] for minute in (0, 1) for each in (0, 1, 2)
}
"""Each runs for 425 steps, one after the other."""


@pytest.mark.parametrize("sharing", SHARINGS.values(), ids=SHARINGS)
def test_beside_giants_of_half_the_cache_every_minute_others_start_as_if_none_waited(sharing):
    small, giants = beside_waiting_giants(*waits(1500 + 2 * MINUTE, THREE_EACH_MINUTE, sharing))
    assert len(small) > 50
    assert np.percentile(small, 95) <= 2
    assert max(giants) <= 2 * 440


ALONE = {1500: [(80_000, 8)]}


@pytest.mark.parametrize("name", [name for name in SHARINGS if name != "a class of less weight"])
def test_a_giant_beside_which_others_have_no_room_starts_ten_seconds_and_an_answer_after_it_came(name):
    small, (giant,) = beside_waiting_giants(*waits(4000, ALONE, SHARINGS[name]))
    passing = 10 / STEP_SECONDS
    assert passing < giant <= passing + ANSWER
    assert max(small[: int(passing / EVERY)]) == 0
    # Until those that ran have left it enough, which takes 568 steps without any start, whatever the order.
    assert max(small) <= 568 + 40


def test_a_class_of_more_weight_passes_as_many_times_longer():
    small, (giant,) = beside_waiting_giants(*waits(4000, ALONE, SHARINGS["a class of less weight"]))
    assert giant > 2000
    assert max(small) <= 1


@settings(max_examples=30)
@given(
    st.floats(0.3, 0.9),
    st.integers(1, 40),
    st.integers(50, 500),
    st.integers(10, 60),
    st.sampled_from([1.0, 1.5, 3.0]),
    st.sampled_from(["fcfs", "fair"]),
)
def test_a_giant_starts_once_the_passing_is_over_and_two_of_the_longest_answers(
    share, own, answer, num_running, ratio, policy
):
    classes = ServiceClass("interactive", weight=ratio), ServiceClass("batch")
    sharing = Sharing(classes, policy, ("interactive", "a"), ("batch", "b"))
    giants = {2 * answer: [(int(share * BLOCKS * SIZE), own)]}
    passing, longest = ratio * 10 / STEP_SECONDS, answer + 2
    every = max(1, answer // num_running)
    found = waits(int(2 * answer + passing + 6 * longest), giants, sharing, every=every, small_answer=answer)
    small, (giant,) = beside_waiting_giants(*found)
    assert giant <= passing + 2 * longest
    assert all(wait <= 2 * longest for wait in small)


LARGE, FIRST, LATER = 1000, 2000, 2001


def behind_a_large_one(**fields):
    """A request of most of the cache waits. One of those that run has ended: it does not fit yet, as long as another
    does not end."""
    driver = Driver(
        num_blocks=60, block_size=4, max_model_len=240, max_num_seqs=16, max_num_batched_tokens=256,
        kv_headroom=0.0, prefix_caching=False, **fields,
    )  # fmt: skip
    driver.add(0, [1] * 112, 12, tenant="others", priority=1)
    driver.add(1, [2] * 76, 20, tenant="others", priority=1)
    driver.add(2, [3] * 4, 30, tenant="large", priority=1)
    driver.step()
    driver.add(LARGE, [4] * 160, 2, tenant="large", priority=2)
    while 0 not in driver.finished:
        driver.step()
    return driver


@pytest.mark.parametrize(
    ("policy", "first", "later"),
    [
        ("priority", {"priority": 1}, {"priority": 2}),
        ("fair", {"tenant": "served less"}, {"tenant": "others"}),
        ("fcfs", None, {}),
    ],
)
def test_what_comes_free_for_a_large_one_is_given_to_those_that_the_policy_puts_before_it_and_to_no_others(
    policy, first, later
):
    driver = behind_a_large_one(policy=policy)
    driver.add(LATER, [5] * 72, 2, **later)
    driver.step()
    assert LATER not in driver.admission_order
    if first is not None:
        driver.add(FIRST, [6] * 72, 2, **first)
        driver.step()
        driver.step()
        assert driver.admission_order[-1] == FIRST
    driver.run()
    assert driver.admission_order[-2:] == [LARGE, LATER]


def test_requests_that_did_not_fit_are_forgotten_when_they_start_or_end():
    capacity = {"num_blocks": 1000, "block_size": 16, "max_model_len": 16_000, "prefix_caching": False}
    scheduler = Scheduler(SchedulerConfig(Limits(64, 2048), **capacity))

    def add(number, tokens, answer):
        request = Request(number, np.full(tokens, 1, np.int32), SamplingParams(answer), 0.0)
        scheduler.add(request)
        return weakref.ref(request.prompt_token_ids)

    add(0, 9000, 20)
    refused = add(1, 15_000, 2), add(2, 14_000, 2)
    for _ in range(60):
        plan = scheduler.schedule(0.0)
        if plan is not None:
            scheduler.update(plan, np.zeros(len(plan.sampled_slots), np.int32))
        if scheduler.num_running == 1 and scheduler.num_waiting == 1:
            scheduler.cancel(2, FinishReason.ABORT)
    gc.collect()
    assert not scheduler.has_work
    assert [each() for each in refused] == [None, None]


@pytest.mark.parametrize("policy", ["fcfs", "fair", "deadline"])
def test_while_decodes_go_on_alike_nobody_looks_who_may_start_beside_a_request_that_does_not_fit(policy, monkeypatch):
    """It took four times what the rest of a step takes."""
    scheduler = Scheduler(
        SchedulerConfig(Limits(9, 512), num_blocks=56, block_size=SIZE, max_model_len=800, policy=policy, classes=EQUAL)
    )

    def add(number, tokens, answer):
        scheduling = Scheduling(tenant=f"tenant {number % 3}", service_class=EQUAL[number % 2].name)
        prompt, sampling = np.full(tokens, number, np.int32), SamplingParams(answer)
        scheduler.add(Request(number, prompt, sampling, 0.0, scheduling))

    def step():
        plan = scheduler.schedule(float(scheduler.num_steps))
        scheduler.update(plan, np.zeros(len(plan.sampled_slots), np.int32))
        return plan

    for number in range(6):
        add(number, 20, 60)
    step()
    for number in range(6, 12):
        add(number, 760, 20)
    step(), step()
    assert len(scheduler.admission.blocked) > 2
    looked = []
    monkeypatch.setattr(scheduler.queues, "beside", lambda head, clock: looked.append(clock))
    assert [len(step().decode_slots) for _ in range(40)] == [6] * 40
    assert not looked

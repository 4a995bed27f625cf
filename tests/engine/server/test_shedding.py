"""Requests that would wait for too long are refused at once, and no others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inflight_cost.model import CostModel
from inflight_engine.messages import StepCost
from inflight_engine.request import FinishReason
from inflight_engine.server.admission.demand import Demand, Load, Slots
from inflight_engine.server.admission.shedding import Shedding
from inflight_engine.server.admission.waiting import WaitingRequests
from inflight_engine.server.engine.session import NO_STATS
from inflight_settings.engine import EngineConfig
from inflight_settings.scheduling import ServiceClass
from tests.engine.server.fake_engine import until
from tests.engine.server.test_requests import metrics
from tests.engine.server.test_scheduling_fields import start

RATE = 100.0
"""Prompt tokens a second."""
CHAT, BATCH = ServiceClass("chat"), ServiceClass("batch")
WEIGHTS = {"chat": 3.0, "batch": 1.0}


class Queue:
    """Waiting requests, and shedding where `seconds_for` predicts waits."""

    def __init__(
        self,
        bound=2.0,
        classes=(CHAT, BATCH),
        targets=None,
        per_token=0.0,
        seconds_for=lambda tokens, requests: tokens / RATE,
    ):
        self.waiting = WaitingRequests(classes, targets, per_token)
        self.enter, self.leave = self.waiting.enter, self.waiting.leave
        self._shedding = Shedding(self.waiting, classes, bound)
        self._seconds_for = seconds_for

    def refusal(self, service_class, now, uncomputed, weights, num_tokens=None, computed_share=1.0):
        return self._shedding.refusal(
            service_class, now, uncomputed, weights, self._seconds_for, num_tokens, computed_share
        )


def fill(queue, name, tokens, first=0, arrived=0.0):
    """Requests of these sizes wait; returns how many tokens they have."""
    for number, each in enumerate(tokens, start=first):
        queue.enter(name, number, arrived, each)
    return sum(tokens)


def test_a_request_is_refused_where_what_waits_takes_longer_than_the_bound():
    queue = Queue()
    waiting = fill(queue, "chat", [150, 50])
    assert queue.refusal("chat", 0.0, waiting, WEIGHTS) is None
    refusal = queue.refusal("chat", 0.0, waiting + 140, WEIGHTS)
    assert (refusal.status, refusal.code) == (503, "overloaded")
    assert refusal.retry_after == pytest.approx(1.4)
    assert refusal.all_headers()["retry-after"] == "2"
    assert "about 3.4 s, and --shed-after allows 2 s" in refusal.message


def test_what_the_prefix_cache_has_of_waiting_prompts_takes_no_time_and_what_is_in_prefill_does():
    queue = Queue()
    waiting = fill(queue, "chat", [200] * 20)
    assert queue.refusal("chat", 0.0, waiting, WEIGHTS) is not None
    assert queue.refusal("chat", 0.0, waiting, WEIGHTS, computed_share=0.05) is None
    assert queue.refusal("chat", 0.0, waiting + 150, WEIGHTS, computed_share=0.05) is not None


def test_the_share_of_prompts_that_is_computed_follows_recent_requests_over_restarts():
    demand = Demand()
    assert demand.computed_share == 1
    demand.step(replace(NO_STATS, prefix_queries=1000, prefix_hits=0))
    assert demand.computed_share == 1
    demand.step(replace(NO_STATS, prefix_queries=400_000, prefix_hits=399_000 * 0.9))
    assert demand.computed_share == pytest.approx(0.1)
    demand.step(replace(NO_STATS, prefix_queries=1000, prefix_hits=1000))
    assert 0.09 < demand.computed_share < 0.1
    assert Load(replace(NO_STATS, waiting_prompt_tokens=5000), None, None, 3, 4000).tokens_to_compute(0.25) == 2000


def test_without_a_bound_nothing_is_refused():
    queue = Queue(bound=None)
    assert queue.refusal("chat", 0.0, fill(queue, "chat", [10**6]), WEIGHTS) is None


def test_a_class_has_its_own_bound():
    queue = Queue(bound=None, classes=(ServiceClass("chat", shed_after=1.0), BATCH))
    waiting = fill(queue, "chat", [300])
    assert queue.refusal("chat", 0.0, waiting, WEIGHTS) is not None
    assert queue.refusal("batch", 0.0, waiting, WEIGHTS) is None


def test_what_waits_in_another_class_slows_a_class_down_by_the_weights_only():
    queue = Queue()
    waiting = fill(queue, "batch", [5000])
    assert queue.refusal("chat", 0.0, waiting, WEIGHTS) is None
    waiting += fill(queue, "chat", [140], first=1)
    assert queue.refusal("chat", 0.0, waiting, WEIGHTS) is None, "140 tokens at three quarters of the rate"
    waiting += fill(queue, "chat", [20], first=2)
    assert queue.refusal("chat", 0.0, waiting, WEIGHTS) is not None
    assert queue.refusal("batch", 0.0, waiting, WEIGHTS) is not None


def test_under_deadline_only_requests_in_time_count_while_the_next_one_can_keep_its_target():
    queue = Queue(bound=3.0, targets={"chat": 2.0})
    waiting = fill(queue, "chat", [1000]) + fill(queue, "chat", [150], first=1, arrived=8.5)
    assert queue.refusal("chat", 1.0, waiting, WEIGHTS) is not None, "all of them are in time"
    assert queue.refusal("chat", 9.0, waiting, WEIGHTS) is None, "the first is late, so a new one goes before it"
    waiting += fill(queue, "chat", [100], first=2, arrived=8.5)
    assert queue.refusal("chat", 9.0, waiting, WEIGHTS) is not None, "it would be late itself, and so behind the first"


def test_a_long_prompt_has_the_time_that_its_tokens_add_to_keep_its_target():
    queue = Queue(bound=3.0, targets={"chat": 1.0}, per_token=0.01)
    # In time until 11 s the one, until 9 s the other that came later.
    waiting = fill(queue, "chat", [1000]) + fill(queue, "chat", [200], first=1, arrived=6.0)
    assert queue.refusal("chat", 8.0, waiting, WEIGHTS, 10_000) is not None, "both are in time, and before it"
    waiting += fill(queue, "chat", [200], first=2, arrived=9.5)
    assert queue.refusal("chat", 12.0, waiting, WEIGHTS, 100) is None, "the first two are late, so it goes before them"
    waiting += fill(queue, "chat", [90], first=3, arrived=11.5)
    assert queue.refusal("chat", 12.0, waiting, WEIGHTS, 100) is not None, "2.9 s: late itself, and so behind the late"
    assert queue.refusal("chat", 12.0, waiting, WEIGHTS, 200) is None, "in time within 3 s"
    assert queue.refusal("chat", 12.0, waiting, WEIGHTS) is None, "before its length is known it might be long"


@given(
    sizes=st.lists(st.tuples(st.sampled_from(["chat", "batch"]), st.integers(1, 5000)), max_size=20),
    bound=st.floats(0.001, 100),
    now=st.floats(0, 100),
    per_token=st.sampled_from([0.0, 0.01]),
)
def test_an_engine_with_nothing_to_compute_refuses_nothing_whatever_waited_before(sizes, bound, now, per_token):
    queue = Queue(bound, targets={"chat": 1.0}, per_token=per_token)
    for number, (name, tokens) in enumerate(sizes):
        queue.enter(name, number, 0.0, tokens)
        queue.refusal(name, now / 2, 10**6, WEIGHTS)
    for number, (name, _) in enumerate(sizes):
        queue.leave(name, number)
    assert queue.refusal("chat", now, 0, WEIGHTS) is None
    assert queue.refusal("batch", now, 0, WEIGHTS) is None


async def test_a_request_that_would_wait_too_long_is_503_and_counted_and_an_idle_engine_takes_it(make_fake):
    engine = EngineConfig("fake", classes=(ServiceClass("default", shed_after=0.4), ServiceClass("patient")))
    fake = await make_fake(engine=engine, shed_after=100.0)
    first = start(fake)
    await until(lambda: fake.engine.requests)
    fake.service.admission.demand.step_cost = StepCost(CostModel(0.0, 0.0, 1e-3, 0.0, 0.0), 0.0, 100.0)
    fake.engine.report(num_prefill_tokens=100, step_seconds=0.1, num_running=1, waiting_prompt_tokens=500)
    await until(lambda: fake.service.session.stats.num_running == 1)
    refused = await start(fake)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert refused.headers["retry-after"] == "1"
    assert (await metrics(fake))['inflight_admission_rejections_total{reason="shed"}'] == 1
    patient = start(fake, **{"class": "patient"})
    await until(lambda: len(fake.engine.requests) == 2)
    # What the engine said of its queue last is older than the end of both.
    last = list(fake.engine.requests)[-1]
    ended = [(0, FinishReason.LENGTH), (last, FinishReason.LENGTH)]
    fake.engine.report(admitted=[(0, 0), (last, 1)], finished=ended, waiting_prompt_tokens=500)
    assert (await first).status_code == (await patient).status_code == 200
    again = start(fake)
    await until(lambda: len(fake.engine.requests) == 3)
    fake.engine.answer(list(fake.engine.requests)[-1], "x")
    assert (await again).status_code == 200


def test_slots_that_are_taken_count_with_the_requests_that_take_them_first():
    asked = []
    queue = Queue(seconds_for=lambda tokens, requests: asked.append(requests) or requests)
    assert queue.refusal("chat", 0.0, 0, WEIGHTS) is None
    waiting = fill(queue, "chat", [1, 1]) + fill(queue, "batch", [1] * 9, first=5)
    assert queue.refusal("chat", 0.0, waiting, WEIGHTS) is not None
    # Of two of its own it waits for a third more, as batch has a weight of one to three.
    assert asked == [1, 1 + 2 * 4 / 3]


@pytest.mark.parametrize(
    ("limit", "running", "kv_tokens", "wanted", "steps"),
    [
        (8, 3, 10**6, 5, 0),  # slots are free
        (8, 8, 10**6, 1, 100 / 8),  # one of eight ends each 12.5 steps
        (8, 8, 10**6, 16, 2 * 100),
        (8, 5, 10**6, 4, 100 / 8),
        (8, 2, 300, 1, 100 / 2),  # the cache holds two of 100 + 50 tokens
        (8, 4, 300, 1, 100 / 4),  # and more while they are short
        (8, 0, 10, 1, 0),
    ],
)
def test_slots_get_free_as_outputs_end(limit, running, kv_tokens, wanted, steps):
    assert Slots(limit, running, kv_tokens, 100.0, 100.0).steps_until_free(wanted) == pytest.approx(steps)


def test_before_an_output_is_complete_slots_count_as_free():
    assert Slots(2, 2, 1000, 10.0, 0.0).steps_until_free(50) == 0

"""Measurements of a vLLM scheduler's steps."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_cost.model import CostModel, StepWork, attended_tokens
from inflight_fit.online import OnlineFit
from inflight_vllm.steps import CostMeter, RequestMeter, StepClock, WorkMeter

ABORTED = "aborted"


@dataclass(eq=False)
class FakeRequest:
    """Stands in for vLLM's `Request`."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    status: str = "running"
    deadline: float = 0.0
    block_hashes: tuple = ()
    num_preemptions: int = 0
    skip_reading_prefix_cache: bool = False

    @property
    def priority(self):
        return round(1000 * self.deadline)

    @property
    def arrival_time(self):
        return self.deadline - 1

    def is_finished(self):
        return self.status != "running"


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self):
        return self.now


def plain_work(scheduled, requests):
    """The work of a step, request by request."""
    decodes = [
        (r, n)
        for r, n in scheduled.items()
        if n == 1 and requests[r].num_computed_tokens > requests[r].num_prompt_tokens
    ]
    others = {r: n for r, n in scheduled.items() if (r, n) not in decodes}
    return StepWork(
        len(decodes),
        sum(others.values()),
        sum(requests[r].num_computed_tokens for r, _ in decodes),
        sum(attended_tokens(requests[r].num_computed_tokens - n, n) for r, n in others.items()),
    )  # fmt: skip


def test_a_prompt_in_two_chunks_and_its_first_decode():
    request, meter = FakeRequest("a", 10), WorkMeter()
    found = []
    for count in (6, 4, 1):
        request.num_computed_tokens += count
        found.append(meter.work({"a": count}, count, {"a": request}, started=not found))
    assert found == [StepWork(0, 6, 0, 21), StepWork(0, 4, 0, 34), StepWork(1, 0, 11, 0)]


STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 8)), min_size=1, unique_by=lambda pair: pair[0]),
        st.dictionaries(st.sampled_from("abcde"), st.integers(0, 6)),
    )
)
"""Requests of each step, and the tokens that preempted ones find in the prefix cache when they start again."""


@given(STEPS)
def test_work_is_that_of_each_request_alone_also_after_preemptions(steps):
    requests, meter = {name: FakeRequest(name, 5) for name in "abcde"}, WorkMeter()
    waiting = set(requests)
    for step, preempted in steps:
        for name, cached in preempted.items():
            requests[name].num_computed_tokens = min(cached, requests[name].num_computed_tokens)
            waiting.add(name)
        scheduled = {}
        for name, count in step:
            request = requests[name]
            left = request.num_prompt_tokens - request.num_computed_tokens
            scheduled[name] = min(count, left) if left > 0 else 1
            request.num_computed_tokens += scheduled[name]
        started = not waiting.isdisjoint(scheduled)
        waiting -= scheduled.keys()
        expected = plain_work(scheduled, requests)
        assert meter.work(scheduled, sum(scheduled.values()), requests, started=started) == expected


def test_steps_one_after_the_other_take_from_their_planning():
    clock = StepClock()
    assert [clock.seconds(1.0, 2.0), clock.seconds(2.5, 3.0)] == [1.0, 0.5]


def test_a_step_planned_ahead_takes_from_the_end_of_the_one_before():
    clock = StepClock()
    assert [clock.seconds(1.0, 2.0), clock.seconds(1.1, 3.5)] == [1.0, 1.5]


COST = CostModel(0.004, 0.0005, 0.0001, 1e-6, 1e-8)


def varied_steps(count):
    """Steps one after the other: work, seconds, begin, end."""
    now = 0.0
    for step in range(count):
        work = StepWork(step % 17, (step % 5) * 32, (step % 17) * 300, (step % 5) * 4000)
        began, now = now, now + 0.05
        yield work, COST.seconds(work), began, now


def test_the_cost_of_steps_is_found():
    clock = Clock()
    meter = CostMeter(compiles=False, clock=clock)
    for work, seconds, began, ended in varied_steps(400):
        meter.observe(work, seconds, began, ended)
        clock.now = ended
        if meter.due:
            meter.fit()
    assert meter.measured is not None
    assert meter.measured.error < 0.02
    work = StepWork(8, 64, 2400, 9000)
    assert meter.measured.model.seconds(work) == pytest.approx(COST.seconds(work), rel=0.05)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_steps_taken_in_together_give_the_same_cost_as_one_by_one(batches):
    clock, single = Clock(), OnlineFit()
    meter, steps = CostMeter(compiles=False, clock=clock), iter(varied_steps(sum(batches)))
    expected = None
    for size in batches:
        for work, seconds, began, ended in itertools.islice(steps, size):
            meter.observe(work, seconds, began, ended)
            single.observe(work, seconds, ended)
            clock.now = ended
        assert meter.due == single.due(clock.now)
        if meter.due:
            meter.fit()
            expected = single.fit(clock.now) or expected
    assert meter.measured == expected


def test_steps_in_flight_during_a_fit_are_left_out(monkeypatch):
    taken, observe = [], OnlineFit.observe
    monkeypatch.setattr(OnlineFit, "observe", lambda fit, *step: taken.append(step[-1]) or observe(fit, *step))
    clock = Clock()
    meter = CostMeter(compiles=False, clock=clock)
    meter.observe(StepWork(1, 1, 5, 1), 0.01, 0.1, 1.0)
    monkeypatch.setattr(OnlineFit, "fit", lambda *_: setattr(clock, "now", 3.5))
    clock.now = 2.0
    meter.fit()
    for began, ended in ((1.5, 1.9), (1.9, 2.1), (2.1, 3.0), (1.9, 4.0), (3.4, 4.0), (3.5, 4.0)):
        meter.observe(StepWork(1, 1, 5, 1), 0.01, began, ended)
    assert taken == [1.0, 1.9, 4.0]


def test_arrivals_and_uncomputed_prompt_tokens_are_counted():
    meter = RequestMeter()
    first, second = FakeRequest("a", 10, 4), FakeRequest("b", 20)
    meter.arrive(first)
    meter.arrive(second)
    meter.survey(0.0, ABORTED)
    assert meter.arrived == (2, 30, 500)
    assert meter.waiting_prompt_tokens == 26
    second.status = ABORTED
    meter.survey(1.0, ABORTED)
    assert meter.waiting_prompt_tokens == 6


def test_a_request_that_ends_while_it_is_surveyed_counts_with_all_of_its_tokens():
    class Ending(FakeRequest):
        """Ends in the scheduler's thread as soon as its tokens were looked at."""

        @property
        def num_output_tokens(self):
            before, self.generated, self.status = self.generated, 16, "stopped"
            return before

        @num_output_tokens.setter
        def num_output_tokens(self, number):
            self.generated = 15

    meter = RequestMeter()
    meter.arrive(Ending("a", 10))
    meter.survey(0.0, ABORTED)
    meter.survey(1.0, ABORTED)
    assert not meter.known
    assert meter.lengths.estimate().mean == pytest.approx(16)


def test_an_output_cut_short_from_outside_is_not_taken_for_complete():
    complete, cut = RequestMeter(), RequestMeter()
    for meter, status in ((complete, "stopped"), (cut, ABORTED)):
        for number in range(20):
            long, short = FakeRequest(f"l{number}", 1), FakeRequest(f"s{number}", 1)
            meter.arrive(long)
            meter.arrive(short)
            long.num_output_tokens, long.status = 100, "stopped"
            short.num_output_tokens, short.status = 10, status
        meter.survey(0.0, ABORTED)
    assert complete.lengths.estimate().mean == pytest.approx(55, rel=0.05)
    assert cut.lengths.estimate().mean == pytest.approx(100, rel=0.05)

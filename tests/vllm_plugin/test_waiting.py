"""The queue of vLLM's waiting requests by deadline."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_vllm.waiting import DeadlineRequestQueue

BEGIN = 2e9
"""The time of the tests: deadlines are Unix time."""


@dataclass(eq=False)
class Waiting:
    """A request with a deadline, in seconds since `BEGIN`."""

    deadline: float
    num_prompt_tokens: int = 100
    num_preemptions: int = 0
    takes: float = 1.0
    """Seconds before its deadline at which it has to start."""

    @property
    def priority(self):
        return round(1000 * (BEGIN + self.deadline))


class Queue(DeadlineRequestQueue):
    """A queue at a time that tests set."""

    def __init__(self, *requests):
        self.now, self.num_predicted = 0.0, 0
        super().__init__(self.predicted, lambda: BEGIN + self.now)
        for request in requests:
            self.add_request(request)

    def predicted(self, request):
        self.num_predicted += 1
        return request.priority / 1000 - request.takes

    def drained(self):
        return [self.pop_request() for _ in range(len(self))]


def test_the_earliest_deadline_is_first():
    second, first = Waiting(11), Waiting(10)
    queue = Queue(second, first)
    assert queue
    assert list(queue) == [first, second]
    assert queue.drained() == [first, second]
    assert not queue
    for method in (queue.peek_request, queue.pop_request):
        with pytest.raises(IndexError):
            method()


def test_one_that_can_no_longer_be_in_time_lets_others_pass():
    late, long, in_time = Waiting(10), Waiting(12, takes=3.0), Waiting(30)
    queue = Queue(late, long, in_time)
    queue.now = 9.5
    assert queue.drained() == [in_time, late, long]


def test_late_ones_have_a_share_of_the_work_and_of_the_picks_once_they_are_overdue():
    late, others = Waiting(10), [Waiting(100 + number) for number in range(60)]
    queue = Queue(late, *others)
    queue.now = 20.0
    assert queue.drained().index(late) == 19, "a twentieth of the tokens"
    queue = Queue(late, *others)
    queue.now = 41.0
    assert queue.drained().index(late) == 4


def test_a_preempted_request_is_at_its_deadline_and_not_late():
    late, preempted, in_time, later = Waiting(4), Waiting(5), Waiting(20), Waiting(21)
    queue = Queue(preempted)
    assert queue.pop_request() is preempted
    for request in (late, in_time, later):
        queue.add_request(request)
    queue.now, preempted.num_preemptions = 12.5, 1
    queue.prepend_request(preempted)
    assert queue.drained() == [preempted, in_time, later, late]


def test_a_request_without_a_deadline_is_not_late():
    late, other = Waiting(10), Waiting(-BEGIN)
    assert other.priority == 0
    queue = Queue(late, other)
    queue.now = 12.5
    assert queue.drained() == [other, late]


def test_the_request_that_vllm_looked_at_is_the_one_that_it_takes():
    """Time passes between the two, and could make it late."""
    first, second = Waiting(10), Waiting(20)
    queue = Queue(first, second)
    assert queue.peek_request() is first
    queue.now = 9.5
    assert queue.pop_request() is first


def test_a_request_that_could_not_start_does_not_keep_others_from_it_once_it_is_late():
    """vLLM looks at the first request in each step, and leaves it where there is no memory for it."""
    large, small = Waiting(10), Waiting(20)
    queue = Queue(large, small)
    assert queue.peek_request() is large
    queue.now = 9.5
    assert queue.peek_request() is small


def test_a_request_that_comes_twice_is_here_once():
    late, other = Waiting(10), Waiting(20)
    queue = Queue(late, other)
    queue.now = 9.5
    assert queue.peek_request() is other
    queue.add_request(late)
    assert len(queue) == 2
    queue.remove_request(late)
    assert queue.drained() == [other]


def test_what_vllm_put_back_is_at_its_own_place():
    first, second, third = (Waiting(10 + number) for number in range(3))
    queue = Queue(first, second, third)
    skipped = [queue.pop_request(), queue.pop_request()]
    queue.prepend_requests(reversed(skipped))
    assert queue.drained() == [first, second, third]
    assert queue.num_predicted == 3, "once for each"


ACTIONS = st.lists(
    st.tuples(st.sampled_from("add pop put-back remove again wait".split()), st.integers(0, 40)), max_size=60
)


@given(ACTIONS)
def test_no_request_is_lost_or_comes_twice(actions):
    queue, here, taken = Queue(), set(), []
    for action, number in actions:
        if action == "add":
            one = Waiting(queue.now + number, 1 + number, num_preemptions=number // 30, takes=number / 10)
            queue.add_request(one)
            here.add(one)
        elif action == "pop" and here:
            first = queue.peek_request()
            assert queue.pop_request() is first
            here.remove(first)
            taken.append(first)
        elif action == "put-back":
            back, taken = taken[: number // 10], taken[number // 10 :]
            queue.prepend_requests(back)
            here |= {*back}
        elif action == "remove":
            gone = [*here][: number // 10]
            queue.remove_requests({*gone, *taken})
            here -= {*gone}
        elif action == "again":
            for request in [*here][: number // 10]:
                queue.add_request(request)
        elif action == "wait":
            queue.now += number
        assert len(queue) == len(here)
        assert {*queue} == here
    assert {*queue.drained()} == here

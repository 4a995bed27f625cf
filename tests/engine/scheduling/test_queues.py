"""Service classes and requests that resume: what comes before what, whatever the policy."""

from dataclasses import replace

import numpy as np
import pytest

from inflight_engine.request import Request, RequestState, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_policies.lazy_heap import LazyHeap
from inflight_settings.limits import Limits
from inflight_settings.scheduling import ServiceClass
from tests.engine.scheduling.driver import Driver

INF, NAN = float("inf"), float("nan")


def queues(*classes, policy="fcfs"):
    return WaitingQueues(
        SchedulerConfig(
            Limits(8, 64), num_blocks=100, block_size=4, max_model_len=400, policy=policy, classes=classes or DEFAULT
        )
    )


DEFAULT = (ServiceClass(),)
THREE = (ServiceClass("gold", weight=4.0), ServiceClass("silver", weight=2.0), ServiceClass("bulk", weight=1.0))


def request(order, service_class="default", prompt=10, max_tokens=1, state=RequestState.WAITING, priority=0):
    return Request(
        order,
        np.zeros(prompt, np.int32),
        SamplingParams(max_tokens),
        arrival_time=float(order),
        scheduling=Scheduling(service_class, priority),
        order=order,
        state=state,
        num_preemptions=int(state is not RequestState.WAITING),
    )


class Server:
    """A server with one slot, and a queue of each class that never runs dry."""

    def __init__(self, waiting, names, prompt=10, max_tokens=11):
        self.waiting, self.names, self.sizes = waiting, names, (prompt, max_tokens)
        self.clock = self.orders = 0
        self.served = dict.fromkeys(names, 0)
        for name in names:
            self.refill(name)

    def refill(self, name):
        self.waiting.push(request(self.orders, name, *self.sizes), self.clock)
        self.orders += 1

    def serve(self, count):
        for _ in range(count):
            self.refill(self.waiting.head(self.clock).scheduling.service_class)
            each = self.waiting.pop(self.clock)
            self.waiting.admitted(each, each.num_prompt_tokens, self.clock)
            self.waiting.decode_started(each, self.clock)
            self.clock += each.sampling.max_tokens - 1
            self.waiting.decode_ended(each, self.clock)
            self.served[each.scheduling.service_class] += 1
        return self.served


def test_fair_charges_a_continued_request_to_its_tenant_and_not_to_its_class():
    waiting = queues(ServiceClass("a"), ServiceClass("b"), policy="fair")
    other = request(0, "b", prompt=50)
    continued, *new = (request(order, "a", prompt=100) for order in range(1, 5))
    continued.output_token_ids, continued.state, continued.num_preemptions = (
        np.ones(1, np.int32),
        RequestState.PREEMPTED,
        0,
    )
    for each, tenant in zip((continued, *new), "xxyy", strict=True):
        each.scheduling = replace(each.scheduling, tenant=tenant)
    for each in (other, continued, *new, request(9, "b")):
        waiting.push(each, 0)
    for each in (other, continued):
        waiting.remove(each)
        waiting.admitted(each, each.num_tokens, 0)
    assert [waiting.pop(0).order for _ in range(3)] == [3, 4, 2]
    assert waiting.pop(0).order == 9


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_a_request_that_says_it_goes_on_and_does_not_resume_is_a_new_one(policy):
    """20 forged ones of a tenant ran before 4 of another that had come first."""
    driver = Driver(max_num_seqs=1, policy=policy)
    for number in range(4):
        driver.add(number, [number] * 3, 4, tenant="b")
    for number in range(4, 24):
        driver.add(number, [number] * 3, 4, tenant="a", generated=1, resumes=False)
    driver.run()
    assert {*range(4)} <= {*driver.admission_order[: 4 if policy == "fcfs" else 9]}


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "fair", "deadline"])
def test_what_lost_its_slot_comes_before_everything_new_of_its_class_and_by_arrival(policy):
    waiting = queues(policy=policy)
    state = RequestState.PREEMPTED
    for each in (request(0), request(5, max_tokens=90, state=state), request(3, state=state)):
        waiting.push(each, 0)
    assert len(waiting) == 3
    assert waiting.head(0).order == 3
    assert [waiting.pop(0).order for _ in range(3)] == [3, 5, 0]
    assert waiting.head(0) is None
    with pytest.raises(IndexError):
        waiting.pop(0)


def test_a_preempted_batch_request_does_not_resume_before_waiting_ones_of_a_class_that_was_served_less():
    waiting = queues(ServiceClass("interactive", weight=4.0), ServiceClass("batch"))
    preempted = request(0, "batch", state=RequestState.PREEMPTED)
    for each in (preempted, request(1, "interactive"), request(2, "interactive"), request(3, "batch")):
        waiting.push(each, 0)
    order = []
    while len(waiting):
        each = waiting.pop(0)
        waiting.admitted(each, each.num_prompt_tokens, 0)
        order.append(each.order)
    # Interactive is at 0, then 12 / 4; batch at 0, then, with nothing but a sample counted for what resumes, at 2.
    assert order == [1, 0, 3, 2]


def test_under_the_priority_policy_what_lost_its_slot_comes_first_of_its_priority_only():
    waiting = queues(policy="priority")
    waiting.push(request(5, priority=3), 0)
    waiting.push(request(4, priority=-3), 0)
    waiting.push(request(3, priority=3, state=RequestState.PREEMPTED), 0)
    assert [waiting.pop(0).order for _ in range(3)] == [4, 3, 5]


def test_a_class_in_which_nothing_but_a_preempted_request_waits_has_its_turn():
    waiting = queues(*THREE)
    preempted = request(0, "bulk", state=RequestState.PREEMPTED)
    waiting.push(preempted, 0)
    assert waiting.head(0) is preempted
    waiting.remove(preempted)
    assert waiting.head(0) is None
    assert len(waiting) == 0


def test_a_request_stands_by_its_class_then_by_its_priority_where_the_policy_orders_by_it():
    gold, bulk, urgent = request(0, "gold", priority=9), request(1, "bulk", priority=9), request(2, "bulk", priority=-9)
    by_priority, by_arrival = queues(*THREE, policy="priority"), queues(*THREE)
    assert sorted((bulk, urgent, gold), key=by_priority.standing) == [gold, urgent, bulk]
    assert by_arrival.standing(bulk) == by_arrival.standing(urgent) > by_arrival.standing(gold)
    by_arrival.set_weights({"bulk": 8.0}, 0)
    assert by_arrival.standing(bulk) < by_arrival.standing(gold)


def test_what_ended_while_it_waited_is_gone_from_either_lane():
    waiting = queues(*THREE)
    new, resumed, other = request(0, "gold"), request(1, "gold", state=RequestState.PREEMPTED), request(2, "bulk")
    for each in (new, resumed, other):
        waiting.push(each, 0)
    waiting.remove(resumed)
    waiting.remove(new)
    assert len(waiting) == 1
    assert waiting.head(0) is other
    with pytest.raises(KeyError):
        waiting.remove(new)
    assert len(waiting) == 1


@pytest.mark.parametrize("classes", [DEFAULT, THREE])
def test_a_request_of_no_known_class_is_refused(classes):
    waiting = queues(*classes)
    with pytest.raises(ValueError, match=r"class must be one of .*, not 'platinum'"):
        waiting.push(request(0, "platinum"), 0)
    assert len(waiting) == 0


def test_equal_classes_go_in_the_order_of_the_configuration():
    waiting = queues(ServiceClass("z"), ServiceClass("a"))
    for order, name in enumerate("aazz"):
        waiting.push(request(order, name), 0)
    order = []
    for _ in range(4):
        each = waiting.pop(0)
        waiting.admitted(each, each.num_prompt_tokens, 0)
        order.append(each.scheduling.service_class)
    assert order == ["z", "a", "z", "a"]


def test_shares_follow_the_weights():
    assert Server(queues(*THREE), ["gold", "silver", "bulk"]).serve(700) == {"gold": 400, "silver": 200, "bulk": 100}


def test_shares_are_of_those_that_want_one():
    assert Server(queues(*THREE), ["silver", "bulk"]).serve(300) == {"silver": 200, "bulk": 100}


def test_no_class_starves_however_small_its_weight():
    waiting = queues(ServiceClass("vast", weight=1e6), ServiceClass("tiny", weight=1e-6))
    assert Server(waiting, ["vast", "tiny"]).serve(50)["tiny"] == 1, "when it comes it is at the level of the other"


def test_a_class_that_comes_back_did_not_save_up():
    waiting = queues(*THREE)
    Server(waiting, ["bulk"]).serve(100)
    for order in range(1000, 1010):
        waiting.push(request(order, "gold"), 10_000)
    head = waiting.head(10_000)
    assert head.scheduling.service_class == "gold", "equal, and first in the configuration"
    counted = []
    for _ in range(10):
        each = waiting.pop(10_000)
        waiting.admitted(each, each.num_prompt_tokens, 10_000)
        counted.append(each.scheduling.service_class)
    assert "bulk" in counted[:6]


def test_weights_change_live_and_only_for_what_comes():
    waiting = queues(ServiceClass("a"), ServiceClass("b"))
    server = Server(waiting, ["a", "b"])
    assert server.serve(100) == {"a": 50, "b": 50}
    waiting.set_weights({"b": 3.0}, server.clock)
    assert waiting.weights == {"a": 1.0, "b": 3.0}
    assert server.serve(400) == {"a": 150, "b": 350}
    waiting.set_weights({"a": 6.0, "b": 6.0}, server.clock)
    assert server.serve(100) == {"a": 200, "b": 400}


def test_weights_that_change_for_ever_leave_nothing_behind():
    waiting = queues(ServiceClass("a"), ServiceClass("b"))
    for order in range(2):
        waiting.push(request(order, "a", max_tokens=1000), 0)
    waiting.decode_started(waiting.pop(0), 0)
    for clock in range(1, 200):
        waiting.set_weights({"a": float(clock)}, clock)
    assert len(waiting._counters._waiting) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gold": 9.0, "platinum": 1.0}, "no service class platinum: there are gold, silver, bulk"),
        ({"silver": 9.0, "gold": 0}, "weight of class gold must be a number above 0, not 0"),
        ({"silver": 9.0, "gold": -1.0}, "weight of class gold"),
        ({"silver": 9.0, "gold": NAN}, "weight of class gold"),
        ({"silver": 9.0, "gold": INF}, "weight of class gold"),
    ],
)
def test_a_bad_change_of_weights_changes_nothing(change, says):
    waiting = queues(*THREE)
    before = waiting.weights
    with pytest.raises(ValueError, match=says):
        waiting.set_weights(change, 0)
    assert waiting.weights == before
    assert Server(waiting, ["gold", "silver", "bulk"]).serve(70) == {"gold": 40, "silver": 20, "bulk": 10}


def test_a_class_alone_has_a_weight_that_can_be_read_and_set():
    waiting = queues()
    waiting.set_weights({"default": 2}, 0)
    assert waiting.weights == {"default": 2}


def test_weights_given_away_cannot_be_written_to():
    waiting = queues(*THREE)
    waiting.weights["gold"] = 0.0
    assert waiting.weights["gold"] == 4.0


@pytest.mark.parametrize(
    ("classes", "policy", "says"),
    [
        (DEFAULT, "lifo", "policy must be one of fcfs, sjf, priority, fair, deadline, not 'lifo'"),
        ((ServiceClass("a"), ServiceClass("a")), "fcfs", "two service classes have the same name"),
        ((ServiceClass("a", weight=0.0),), "fcfs", "weight of class a must be a number above 0"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_reason(classes, policy, says):
    with pytest.raises(ValueError, match=says):
        queues(*classes, policy=policy)


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_tokens_computed_again_count_for_nobody(policy):
    waiting = queues(ServiceClass("a"), ServiceClass("b"), policy=policy)
    preempted = request(0, "a", prompt=10)
    waiting.push(preempted, 0)
    waiting.admitted(waiting.pop(0), 10, 0)
    for order, name, prompt in ((1, "a", 10), (2, "b", 4), (3, "a", 10), (4, "b", 4), (5, "b", 4)):
        waiting.push(request(order, name, prompt), 0)
    preempted.state, preempted.num_preemptions = RequestState.PREEMPTED, 1
    waiting.push(preempted, 0)
    # Both start at 12, and a is first in the configuration: what resumes costs it one more sample, 14 to 12, then
    # 14 to 18, 26 to 18, 26 to 24, 26 to 30.
    assert waiting.pop(0) is preempted
    waiting.admitted(preempted, 10, 0)
    order = []
    while len(waiting):
        each = waiting.pop(0)
        waiting.admitted(each, each.num_prompt_tokens, 0)
        order.append(each.order)
    assert order == [2, 1, 4, 5, 3]


def test_a_long_queue_that_is_cancelled_from_behind_leaves_nothing():
    heap = LazyHeap()
    heap.push("head", (-1,))
    for number in range(10_000):
        heap.push(f"item {number}", (number,))
        heap.remove(f"item {number}")
    assert (len(heap), heap.first()) == (1, ((-1,), "head"))
    assert len(heap._entries) < 20


def test_an_item_pushed_again_moves():
    heap = LazyHeap()
    heap.push("a", (1,))
    heap.push("b", (2,))
    heap.push("a", (3,))
    assert heap.first() == ((2,), "b")
    heap.push("a", (1,))
    assert heap.first() == ((1,), "a")
    heap.remove("a")
    assert heap.first() == ((2,), "b")


def test_without_a_class_there_are_no_queues():
    with pytest.raises(ValueError, match="at least one service class"):
        WaitingQueues(SchedulerConfig(Limits(8, 64), num_blocks=100, block_size=4, max_model_len=400, classes=()))

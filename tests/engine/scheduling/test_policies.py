"""Each policy by itself."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.request import Request, SamplingParams
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.policies.base import StaticKeyPolicy
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_policies import service_counter
from inflight_settings.limits import Limits
from tests.engine.scheduling_fields import gathered


def config(policy="fcfs", **changes):
    return SchedulerConfig(Limits(8, 64), num_blocks=100, block_size=4, max_model_len=400, policy=policy, **changes)


class Line:
    """A policy with requests numbered in order of arrival."""

    def __init__(self, policy, **changes):
        self.policy = POLICIES[policy](config(policy, **changes))
        self.orders = itertools.count()
        self.clock = 0

    def push(self, prompt=10, max_tokens=10, **fields):
        order = next(self.orders)
        fields.setdefault("arrival_time", float(order))
        request = Request(order, np.zeros(prompt, np.int32), SamplingParams(max_tokens), **gathered(fields))
        request.order = order
        self.policy.push(request, self.clock)
        return request

    def admit(self):
        """The head gets a slot, and its prefill is done at once."""
        request = self.policy.pop(self.clock)
        self.policy.admitted(request, request.num_prompt_tokens, self.clock)
        self.policy.decode_started(request, self.clock)
        return request

    def serve(self):
        """The head runs alone, to its end."""
        request = self.admit()
        self.clock += request.sampling.max_tokens - 1
        self.policy.decode_ended(request, self.clock)
        return request

    def drain(self):
        return [self.serve().order for _ in range(len(self.policy))]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_policy_has_no_head_and_nothing_to_pop(policy):
    line = Line(policy)
    assert line.policy.head(0) is None
    with pytest.raises(IndexError):
        line.policy.pop(0)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_head_stays_until_it_is_popped_or_removed(policy):
    line = Line(policy)
    first, second = line.push(), line.push()
    assert line.policy.head(0) is line.policy.head(0) is first
    line.policy.remove(first)
    assert (line.policy.head(0), len(line.policy)) == (second, 1)
    assert line.policy.pop(0) is second
    assert (line.policy.head(0), len(line.policy)) == (None, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_taking_out_what_does_not_wait_is_an_error(policy):
    line = Line(policy)
    request = line.push()
    line.policy.pop(0)
    with pytest.raises(KeyError):
        line.policy.remove(request)


def test_fcfs_serves_by_arrival_whatever_else_requests_say():
    line = Line("fcfs")
    line.push(max_tokens=90, priority=9)
    line.push(max_tokens=1, priority=-9)
    line.push(tenant="other")
    assert line.drain() == [0, 1, 2]


def test_sjf_serves_the_shortest_prediction_first_and_equals_by_arrival():
    line = Line("sjf")
    line.push(max_tokens=50)
    line.push(max_tokens=90, predicted_tokens=5)
    line.push(max_tokens=7)
    line.push(max_tokens=7)
    assert line.drain() == [1, 2, 3, 0]


def test_priority_serves_the_smallest_number_first_and_equals_by_arrival():
    line = Line("priority")
    for priority in (5, -1, 5, 0):
        line.push(priority=priority, arrival_time=100.0)
    assert line.drain() == [1, 3, 0, 2]


def test_priority_is_worth_so_many_seconds_of_waiting_and_no_more():
    line = Line("priority", priority_aging=10.0)
    line.push(priority=2, arrival_time=100.0)
    line.push(priority=0, arrival_time=119.9)
    line.push(priority=0, arrival_time=120.0)
    line.push(priority=1, arrival_time=120.1)
    assert line.drain() == [1, 0, 2, 3]


def test_deadline_serves_the_oldest_that_can_keep_its_target_then_the_oldest_late_one():
    line = Line("deadline")
    for latest_start in (5.0, 20.0, math.inf, 12.0):
        line.push(latest_start=latest_start)
    assert not line.policy.pass_time(5.0), "it may start at its latest start"
    assert line.policy.head(0).order == 0
    assert line.policy.pass_time(15.0)
    assert line.drain() == [1, 2, 0, 3]


def test_deadline_gives_a_share_of_equal_prompts_to_the_oldest_late_request():
    line = Line("deadline", late_share=0.25)
    for _ in range(3):
        line.push(latest_start=1.0)
    line.policy.pass_time(2.0)
    for _ in range(9):
        line.push(latest_start=100.0)
    assert line.drain() == [3, 4, 5, 0, 6, 7, 8, 1, 9, 10, 11, 2]


def test_deadline_lets_a_late_request_wait_for_so_many_tokens_as_its_own_are_the_share_of():
    line = Line("deadline", late_share=0.25)
    for tokens in (200, 10, 100):
        line.push(tokens, latest_start=1.0)
    line.policy.pass_time(2.0)
    for tokens in (599, 1, 1, 29, 1, 1, 299, 2):
        line.push(tokens, latest_start=100.0)
    assert line.drain() == [3, 4, 0, 5, 6, 1, 7, 8, 9, 2, 10]


def test_deadline_gives_one_pick_in_five_to_late_requests_once_the_oldest_has_waited_for_late_wait():
    line = Line("deadline", late_wait=10.0)
    for _ in range(3):
        line.push(latest_start=3.0, arrival_time=0.0)
    assert line.policy.pass_time(5.0)
    assert line.policy.pass_time(10.0)
    assert not line.policy.pass_time(11.0)
    for _ in range(12):
        line.push(latest_start=100.0)
    assert line.drain() == [3, 4, 5, 6, 0, 7, 8, 9, 10, 1, 11, 12, 13, 14, 2]


def test_deadline_tells_that_the_head_has_become_overdue():
    line = Line("deadline", late_wait=10.0)
    line.push(latest_start=1.0, arrival_time=0.0)
    line.policy.pass_time(2.0)
    for _ in range(9):
        line.push(latest_start=100.0)
    assert [line.serve().order for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert line.policy.pass_time(10.0)
    assert line.policy.head(0).order == 0


def test_deadline_counts_picks_only_while_late_requests_wait():
    line = Line("deadline", late_share=0.5)
    for latest_start in (100.0, 100.0, 1.0, 100.0, 100.0):
        line.push(latest_start=latest_start)
    assert [line.serve().order for _ in range(2)] == [0, 1]
    line.policy.pass_time(2.0)
    assert line.drain() == [3, 2, 4]


def test_deadline_with_all_picks_for_late_requests_serves_them_first():
    line = Line("deadline", late_share=1.0)
    for latest_start in (100.0, 1.0, 1.0):
        line.push(latest_start=latest_start)
    line.policy.pass_time(2.0)
    assert line.drain() == [1, 2, 0]


def test_deadline_forgets_a_request_that_ended_while_it_waited_late_or_not():
    line = Line("deadline")
    early, late, last = (line.push(latest_start=each) for each in (100.0, 1.0, 100.0))
    line.policy.pass_time(2.0)
    line.policy.remove(early)
    line.policy.remove(late)
    assert not line.policy.pass_time(20.0)
    assert (line.policy.head(0), len(line.policy)) == (last, 1)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, math.nan])
def test_deadline_refuses_a_share_that_is_none(share):
    with pytest.raises(ValueError, match="late_share must be above 0 and at most 1"):
        Line("deadline", late_share=share)


def test_fair_alternates_between_a_flood_and_a_trickle():
    line = Line("fair")
    for _ in range(4):
        line.push(tenant="flood")
    for _ in range(2):
        line.push(tenant="trickle")
    assert line.drain() == [0, 4, 1, 5, 2, 3]


def test_fair_counts_an_output_token_twice():
    line = Line("fair")
    for _ in range(3):
        line.push(prompt=30, max_tokens=1, tenant="reads")  # 32 each
    for _ in range(3):
        line.push(prompt=1, max_tokens=15, tenant="writes")  # 31 each
    # 0:0 reads, 32:0 writes, 32:31 writes, 32:62 reads, 64:62 writes, then what is left.
    assert line.drain() == [0, 3, 4, 1, 5, 2]


def test_fair_counts_tokens_while_they_are_generated_not_when_the_request_ends():
    line = Line("fair")
    for tenant in "aabb":
        line.push(prompt=4, max_tokens=50, tenant=tenant)
    goes_on, pauses = line.admit(), line.admit()
    assert (goes_on.scheduling.tenant, pauses.scheduling.tenant) == ("a", "b")
    assert line.policy.head(line.clock).scheduling.tenant == "a", "equal so far, and it came first"
    line.policy.decode_ended(pauses, line.clock)
    line.clock += 1
    assert line.policy.head(line.clock).scheduling.tenant == "b"


def test_fair_does_not_let_an_absent_tenant_save_up():
    line = Line("fair")
    for _ in range(40):
        line.push(tenant="busy")
    for _ in range(20):
        line.serve()
    for _ in range(3):
        line.push(tenant="back")
    assert [line.serve().scheduling.tenant for _ in range(6)].count("back") == 3, (
        "turn by turn, not all at once before the other"
    )


def test_fair_does_not_forgive_a_tenant_that_sends_one_request_at_a_time():
    line = Line("fair")
    for _ in range(40):
        line.push(tenant="patient")
    served = []
    for _ in range(20):
        if "hasty" not in served[-1:]:
            line.push(tenant="hasty")
        served.append(line.serve().scheduling.tenant)
    assert abs(served.count("hasty") - served.count("patient")) <= 1


def test_fair_lifts_a_newcomer_to_the_one_that_waited_last_when_nobody_waits():
    line = Line("fair")
    line.push(prompt=1000, tenant="old")
    line.serve()
    line.push(tenant="new")
    for _ in range(2):
        line.push(tenant="old")
    assert line.drain() == [1, 2, 3], "both stand at the same level: by arrival"
    assert len(line.policy) == 0


def test_fair_forgets_tenants_that_are_gone():
    line = Line("fair")
    for number in range(3000):
        line.push(tenant=f"tenant {number}")
        line.serve()
    assert len(line.policy._counters) <= 2
    assert not line.policy._queues


def test_fair_remembers_no_more_debts_than_it_may(monkeypatch):
    monkeypatch.setattr(service_counter, "MAX_DEBTORS", 20)
    line = Line("fair")
    for number in range(500):  # Somebody always waits at the same level, so every debt stands.
        line.push(tenant=f"tenant {number}")
        if number >= 5:
            line.serve()
    assert len(line.policy._counters) <= 20 + 6


def test_a_policy_is_a_class_with_a_name(monkeypatch):
    class LongestPromptFirst(StaticKeyPolicy):
        def key(self, request):
            return -request.num_prompt_tokens

    monkeypatch.setitem(POLICIES, "sjf", LongestPromptFirst)
    queues = WaitingQueues(config("sjf"))
    for order, length in enumerate((3, 9, 5)):
        queues.push(Request(order, np.zeros(length, np.int32), SamplingParams(4), 0.0, order=order), 0)
    assert [queues.pop(0).num_prompt_tokens for _ in range(3)] == [9, 5, 3]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=7),
    st.integers(1, 4),
    st.integers(0, 9),
)
def test_the_clients_of_least_service_are_the_same_up_to_the_clock_that_is_named(clients, count, clock):
    counters = service_counter.ServiceCounters({str(rank): unit for rank, (unit, _, _) in enumerate(clients)})
    for rank, (_, decodes, tokens) in enumerate(clients):
        client = str(rank)
        counters.start_waiting(client, rank, clock)
        counters.charge(client, tokens, clock)
        for _ in range(decodes):
            counters.decode_started(client, clock)
    found, until = counters.firsts(count, clock)
    for later in range(clock, int(min(until, clock + 300)) + 1):
        by_service = sorted(range(len(clients)), key=lambda rank: (counters.service(str(rank), later), rank))
        assert counters.firsts(count, later)[0] == found == [str(rank) for rank in by_service[:count]]
    if len({unit * decodes for unit, decodes, _ in clients}) == 1:
        assert until == math.inf

"""Any interleaving of add, cancel, step, failed step, sleep and changes of limits, class weights and rates of copies,
in any configuration, keeps the rules: the model runner checks each plan's contract and block contents, the rules each
decision."""

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflight_engine.request import FinishReason
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.preemption import VICTIMS
from inflight_settings.scheduling import PreemptionMode, ServiceClass
from tests.engine.scheduling.block_index import BlockIndex
from tests.engine.scheduling.driver import Driver
from tests.engine.scheduling.model_runner import VOCAB, reference_output
from tests.engine.scheduling.workload import PREFILL_COSTS, RATES, TENANTS, WEIGHTS, Workload, described

MAX_SEQS, MAX_TOKENS, MAX_LEN = 5, 12, 24
CLASSES = ("default", "batch")
TOKENS = st.integers(0, VOCAB - 1)
# Beginnings that several prompts have in common.
STEMS = ([7] * MAX_LEN, [3, 1, 4, 1, 5, 9, 2, 6] * 3)
# One burst: a prompt is the beginning of a stem and a tail; `share` says how much of what is left to generate it asks.
BURSTS = st.lists(
    st.fixed_dictionaries(
        {
            "stem": st.sampled_from(STEMS),
            "shared": st.integers(0, MAX_LEN // 2),
            "tail": st.lists(TOKENS, min_size=1, max_size=3),
            "share": st.sampled_from([1.0, 0.5, 0.0]),
            "stop": st.sets(TOKENS, max_size=2),
            "fields": st.fixed_dictionaries(
                {
                    "priority": st.integers(-2, 2),
                    "service_class": st.sampled_from(CLASSES),
                    "tenant": st.sampled_from(TENANTS),
                    "cache_salt": st.sampled_from(["", "", "salt"]),
                    "predicted_tokens": st.none() | st.integers(1, 30),
                }
            ),
        }
    ),
    min_size=1,
    max_size=6,
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        data=st.data(),
        room=st.floats(0.8, 2.0),
        block_size=st.integers(1, 5),
        policy=st.sampled_from(sorted(POLICIES)),
        num_classes=st.integers(1, 2),
        victim=st.sampled_from(sorted(VICTIMS)),
        preemption=st.sampled_from(get_args(PreemptionMode)),
        num_host_blocks=st.sampled_from([0, 3, 40]),
        prefix_caching=st.booleans(),
        headroom=st.sampled_from([0.0, 0.1, 0.5]),
        ttft_target=st.sampled_from([None, 0.5, 4.0]),
        ttft_per_1k_tokens=st.sampled_from([0.0, 100.0]),
        lookahead=st.booleans(),
    )
    def start(
        self,
        data,
        room,
        block_size,
        policy,
        num_classes,
        victim,
        preemption,
        num_host_blocks,
        prefix_caching,
        headroom,
        ttft_target,
        ttft_per_1k_tokens,
        lookahead,
    ):
        self.classes = CLASSES[:num_classes]
        num_blocks = math.ceil(room * MAX_LEN / block_size)
        self.longest = min(MAX_LEN, num_blocks * block_size)
        self.driver = Driver(
            max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=MAX_TOKENS,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=MAX_LEN,
            kv_headroom=headroom,
            policy=policy,
            priority_aging=2.0,
            ttft_target=ttft_target,
            ttft_per_1k_tokens=ttft_per_1k_tokens,
            late_share=0.25,
            classes=tuple(ServiceClass(name, weight=data.draw(st.sampled_from(WEIGHTS))) for name in self.classes),
            preemption=preemption,
            preemption_victim=victim,
            num_host_blocks=num_host_blocks,
            prefix_caching=prefix_caching,
            lookahead=lookahead,
            events=[],
        )
        self.index = BlockIndex(self.driver.scheduler)
        self.references = {}
        self.now = 0.0

    @rule(burst=BURSTS)
    def add(self, burst):
        for each in burst:
            prompt = (each["stem"][: each["shared"]] + each["tail"])[: self.longest - 1]
            max_tokens = max(1, int(each["share"] * (self.longest - len(prompt))))
            stop_token_ids = tuple(sorted(each["stop"]))
            fields = dict(each["fields"])
            if fields["service_class"] not in self.classes:
                fields["service_class"] = self.classes[0]
            request_id = len(self.references)
            self.driver.add(request_id, prompt, max_tokens, stop_token_ids, arrival_time=self.now, **fields)
            self.references[request_id] = reference_output(prompt, max_tokens, stop_token_ids)

    @precondition(lambda self: self.references)
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.ABORT, FinishReason.TIMEOUT, FinishReason.STOP]))
    def cancel(self, data, reason):
        request_id = data.draw(st.sampled_from(sorted(self.references)))
        unfinished = request_id not in self.driver.finished
        assert self.driver.cancel(request_id, reason) == unfinished

    @rule(seqs=st.integers(1, MAX_SEQS), tokens=st.integers(1, MAX_TOKENS))
    def change_limits(self, seqs, tokens):
        self.driver.set_limits(seqs, tokens)

    @rule(data=st.data(), weight=st.sampled_from(WEIGHTS))
    def change_class_weights(self, data, weight):
        self.driver.set_class_weights({data.draw(st.sampled_from(self.classes)): weight})

    @rule(cost=st.sampled_from(PREFILL_COSTS))
    def change_prefill_cost(self, cost):
        self.driver.set_prefill_cost(cost)

    @rule(rates=st.sampled_from(RATES))
    def change_rates(self, rates):
        self.driver.set_rates(rates)

    @rule(count=st.integers(1, 12))
    def step(self, count):
        for _ in range(count):
            had_work = self.driver.scheduler.has_work or self.driver.under_way is not None
            assert (self.driver.step() is not None) == had_work, "every step with work makes progress"
            self.now += 1.0
            self.driver.now = self.now

    @rule()
    def sleep(self):
        assert self.driver.sleep() or self.driver.rules.requests or self.driver.under_way is not None

    @rule()
    def failing_step(self):
        self.driver.step(fails=lambda plan: True)

    @invariant()
    def what_is_said_of_the_state_is_right(self):
        if hasattr(self, "driver"):
            self.driver.rules.check_counters(self.driver.scheduler)
            self.driver.check_uncomputed()

    @invariant()
    def who_applies_all_events_knows_exactly_the_blocks_that_can_be_found(self):
        if hasattr(self, "driver"):
            self.index.check()

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        driver.run()
        assert set(driver.finished) == set(self.references)
        for request_id, reference in self.references.items():
            output = driver.outputs[request_id]
            assert output == reference[: len(output)]
            if driver.finished[request_id] is FinishReason.LENGTH:
                assert output == reference
        scheduler = driver.scheduler
        assert scheduler.kv_usage == scheduler.num_uncomputed_tokens == 0
        assert scheduler.num_running == scheduler.num_waiting == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


@given(
    aging=st.sampled_from([0.5, 2.0, 8.0]),
    priority=st.integers(1, 4),
    gaps=st.lists(st.floats(0.0, 1.0), min_size=80, max_size=80),
)
@settings(max_examples=40, deadline=None)
def test_under_aging_a_request_is_overtaken_only_by_those_that_arrive_less_than_its_bound_later(aging, priority, gaps):
    """However many urgent requests keep coming: the bound is its priority times `priority_aging`, in seconds."""
    driver = Driver(max_num_seqs=1, policy="priority", priority_aging=aging)
    busy, patient = 1000, 1001
    driver.add(busy, [1], 8)
    driver.step()
    driver.add(patient, [1, 2, 3], 2, arrival_time=0.0, priority=priority)
    now = 0.0
    for request_id, gap in enumerate(gaps):
        now += gap
        driver.add(request_id, [request_id % VOCAB], 3, arrival_time=now)
        driver.step()
    driver.run()
    overtaking = driver.admission_order[1 : driver.admission_order.index(patient)]
    arrivals = np.cumsum(gaps)
    assert all(arrivals[request_id] < priority * aging for request_id in overtaking)


def test_of_a_longer_equal_output_only_the_blocks_that_are_new_are_told():
    """Both decode the same tokens in blocks of their own, and the shorter one ends first."""
    driver = Driver(events=[], block_size=2)
    index = BlockIndex(driver.scheduler)
    for request_id, max_tokens in enumerate((4, 9)):
        driver.add(request_id, [1, 2, 3], max_tokens)
    driver.run()
    index.check()
    assert len(index.hashes) == (3 + 9 - 1) // 2


@pytest.mark.parametrize("seed", range(8))
def test_equal_calls_give_equal_plans(seed):
    """A replay relies on it."""
    first, second = Workload(seed), Workload(seed)
    for _ in range(300):
        first.step()
        second.step()
        assert described(first.driver.plan) == described(second.driver.plan)

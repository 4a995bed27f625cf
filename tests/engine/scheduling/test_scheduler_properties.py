"""Any interleaving of add, cancel, step and changes of limits, class weights and swap rates, in any configuration,
keeps the rules: the model runner checks each plan's contract and block contents, the rules each decision."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflight_engine.request import FinishReason
from inflight_engine.scheduling.config import ServiceClass
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.victims import VICTIMS
from tests.engine.scheduling.driver import Driver
from tests.engine.scheduling.model_runner import VOCAB, reference_output
from tests.engine.scheduling.workload import PREEMPTIONS, RATES, TENANTS, WEIGHTS

MAX_SEQS, MAX_TOKENS, MAX_LEN = 5, 12, 24
CLASSES = ("default", "batch")
TOKENS = st.integers(0, VOCAB - 1)
# Beginnings that several prompts have in common.
STEMS = ([7] * MAX_LEN, [3, 1, 4, 1, 5, 9, 2, 6] * 3)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        data=st.data(),
        num_blocks=st.integers(4, 14),
        block_size=st.integers(1, 5),
        policy=st.sampled_from(sorted(POLICIES)),
        num_classes=st.integers(1, 2),
        victim=st.sampled_from(sorted(VICTIMS)),
        preemption=st.sampled_from(PREEMPTIONS),
        num_host_blocks=st.sampled_from([0, 3, 40]),
        prefix_caching=st.booleans(),
        headroom=st.sampled_from([0.0, 0.1, 0.5]),
    )
    def start(
        self,
        data,
        num_blocks,
        block_size,
        policy,
        num_classes,
        victim,
        preemption,
        num_host_blocks,
        prefix_caching,
        headroom,
    ):
        self.classes = CLASSES[:num_classes]
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
            classes=tuple(ServiceClass(name, weight=data.draw(st.sampled_from(WEIGHTS))) for name in self.classes),
            preemption=preemption,
            preemption_victim=victim,
            num_host_blocks=num_host_blocks,
            prefix_caching=prefix_caching,
        )
        self.references = {}
        self.now = 0.0

    @rule(
        data=st.data(),
        stem=st.sampled_from(STEMS),
        shared=st.integers(0, MAX_LEN),
        tail=st.lists(TOKENS, min_size=1, max_size=4),
        stop=st.sets(TOKENS, max_size=2),
        priority=st.integers(-2, 2),
        tenant=st.sampled_from(TENANTS),
        salt=st.sampled_from(["", "", "salt"]),
        predicted=st.none() | st.integers(1, 30),
    )
    def add(self, data, stem, shared, tail, stop, priority, tenant, salt, predicted):
        prompt = (stem[:shared] + tail)[: self.longest - 1]
        max_tokens = data.draw(st.integers(1, self.longest - len(prompt)))
        stop_token_ids = tuple(sorted(stop))
        request_id = len(self.references)
        self.driver.add(
            request_id,
            prompt,
            max_tokens,
            stop_token_ids,
            arrival_time=self.now,
            priority=priority,
            service_class=data.draw(st.sampled_from(self.classes)),
            tenant=tenant,
            cache_salt=salt,
            predicted_tokens=predicted,
        )
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

    @rule(rates=st.sampled_from(RATES))
    def change_rates(self, rates):
        self.driver.set_rates(rates)

    @rule(count=st.integers(1, 8))
    def step(self, count):
        for _ in range(count):
            had_work = self.driver.scheduler.has_work
            assert (self.driver.step() is not None) == had_work, "every step with work makes progress"
            self.now += 1.0

    @invariant()
    def what_is_said_of_the_state_is_right(self):
        if hasattr(self, "driver"):
            self.driver.rules.check_counters(self.driver.scheduler)
            self.driver.rules.check_uncomputed(self.driver.scheduler)

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
        assert scheduler.kv_usage == scheduler.num_swapped_blocks == scheduler.num_uncomputed_tokens == 0
        assert scheduler.num_running == scheduler.num_waiting == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

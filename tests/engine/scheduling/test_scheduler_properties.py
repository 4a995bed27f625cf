"""Any interleaving of add, cancel and limit changes keeps the rules; the model runner checks every plan."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflight_engine.request import FinishReason
from tests.engine.scheduling.driver import Driver
from tests.engine.scheduling.model_runner import reference_output

MAX_SEQS, MAX_TOKENS = 5, 12


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(6, 14),
        block_size=st.integers(1, 5),
        headroom=st.sampled_from([0.0, 0.1, 0.5]),
    )
    def start(self, num_blocks, block_size, headroom):
        self.longest = min(24, num_blocks * block_size)
        self.driver = Driver(
            max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=MAX_TOKENS,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=24,
            kv_headroom=headroom,
        )
        self.expected = {}

    @rule(data=st.data(), length=st.integers(1, 23), stop=st.sets(st.integers(0, 49), max_size=3))
    def add(self, data, length, stop):
        length = min(length, self.longest - 1)
        prompt = data.draw(st.lists(st.integers(0, 49), min_size=length, max_size=length))
        max_tokens = data.draw(st.integers(1, self.longest - length))
        request_id = len(self.expected)
        self.driver.add(request_id, prompt, max_tokens, tuple(sorted(stop)))
        self.expected[request_id] = reference_output(prompt, max_tokens, tuple(sorted(stop)))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def cancel(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.expected)))
        running = request_id not in self.driver.finished
        assert self.driver.cancel(request_id) == running

    @rule(seqs=st.integers(1, MAX_SEQS), tokens=st.integers(1, MAX_TOKENS))
    def change_limits(self, seqs, tokens):
        self.driver.set_limits(seqs, tokens)

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            had_work = self.driver.scheduler.has_work
            assert (self.driver.step() is not None) == had_work, "every step with work makes progress"

    @invariant()
    def what_is_finished_is_right(self):
        for request_id, reason in self.driver.finished.items():
            expected, output = self.expected[request_id], self.driver.outputs[request_id]
            if reason is FinishReason.ABORT:
                assert output == expected[: len(output)]
            else:
                assert output == expected

    @invariant()
    def nothing_leaks(self):
        scheduler = self.driver.scheduler
        owned = [block for blocks in scheduler.slots.blocks for block in blocks]
        assert len(owned) + scheduler.pool.num_free == scheduler.pool.num_blocks
        if not scheduler.has_work:
            assert scheduler.pool.usage == 0
            assert scheduler.num_running == scheduler.num_waiting == scheduler.num_uncomputed_tokens == 0

    @invariant()
    def uncomputed_tokens_are_what_a_walk_would_count(self):
        scheduler = self.driver.scheduler
        waiting = prefilling = 0
        for request_id in self.expected:
            request = scheduler._requests.get(request_id)
            if request is None:
                continue
            if request.slot < 0:
                waiting += len(request.prompt_token_ids) + len(request.output_token_ids)
            elif not scheduler.slots.is_decoding(request.slot):
                prefilling += int(scheduler.slots.num_tokens[request.slot] - scheduler.slots.num_computed[request.slot])
        assert scheduler.num_uncomputed_tokens == waiting + prefilling

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        self.driver.set_limits(MAX_SEQS, MAX_TOKENS)
        self.driver.run()
        assert set(self.driver.finished) == set(self.expected)
        self.what_is_finished_is_right()
        self.nothing_leaks()
        never_cancelled = [i for i, reason in self.driver.finished.items() if reason is not FinishReason.ABORT]
        first_admissions = list(dict.fromkeys(self.driver.admission_order))
        order = [i for i in first_admissions if i in set(never_cancelled)]
        assert order == sorted(order), "first come, first served"


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

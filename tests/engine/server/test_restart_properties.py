"""Any interleaving of requests, steps, clients that leave, and engine processes that die and come back."""

import asyncio
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_contract.errors import ApiError
from inflight_engine.messages import AddRequest, Admission, CancelRequest, Configure, Finished, Starting, StepReport
from inflight_engine.request import FinishReason, SamplingParams, Scheduling
from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.engine.session import NO_STATS, Restarts
from inflight_engine.server.requests.generation import GenerationRequest
from inflight_engine.server.requests.inbox import Inbox
from inflight_engine.server.requests.phases import RequestPhase
from inflight_engine.server.requests.registry import MAX_TRIES
from inflight_engine.server.service import Service
from inflight_settings.limits import LimitsInForce
from tests.engine.server.fake_engine import CAPACITY, READY, ByteTokenizer, server_config

MAX_QUEUED = 6
PROMPT = [1, 2, 3]
SCHEDULING = Scheduling()


class Engine:
    """A stand-in for the connection and the engine process behind it: what one process knows of requests.

    Attributes:
        waiting: as they came. running: slot -> request id. tokens: of each request, by this process or before it.
    """

    def __init__(self):
        self.open, self.configured = False, False
        self.waiting, self.running, self.tokens, self.cancelled = [], {}, {}, []

    def send(self, *messages):
        for message in messages if self.open else ():
            match message:
                case AddRequest():
                    assert message.request_id not in self.tokens, "submitted twice to one process"
                    self.waiting.append(message.request_id)
                    self.tokens[message.request_id] = np.frombuffer(message.output_token_ids, np.int32).tolist()
                case CancelRequest():
                    self.end(message.request_id)
                    self.cancelled.append(Finished(message.request_id, message.reason))
                case Configure():
                    assert not self.tokens, "the limits come first"
                    self.configured = True

    def cut(self):
        self.open = False

    def end(self, request_id):
        self.waiting = [each for each in self.waiting if each != request_id]
        self.running = {slot: each for slot, each in self.running.items() if each != request_id}


class World:
    """A registry, its engine, and what it may hold.

    Attributes:
        most_waiting: places of the queue; more only after a loss, of requests that ran.
    """

    def __init__(self):
        self.most_waiting = MAX_QUEUED
        self.service = Service(server_config(max_queued_requests=MAX_QUEUED))
        self.tokenizer, self.generations = ByteTokenizer(), []
        self.expected = {}
        self.engine = Engine()
        self.connect()

    async def open(self):
        await self.service.open(self.tokenizer, LimitsInForce(CAPACITY))

    def connect(self):
        self.engine = Engine()
        self.service.session.link = self.engine
        self.service.session.receive(READY)

    def report(self, admitted=(), tokens=None, finished=()):
        tokens = tokens or {}
        slots, ids = (np.array(list(part), np.int32).tobytes() for part in (tokens, tokens.values()))
        self.service.session.receive(
            StepReport(0, [Admission(*each) for each in admitted], slots, ids, [], list(finished), NO_STATS)
        )

    def submit(self, stream, relayed, count=1, at_once=None):
        new, sampling = self.service.registry.new_request_id, SamplingParams(max_tokens=99)
        requests = [
            GenerationRequest(new(), index, PROMPT, sampling, SCHEDULING, (), stream, relayed=relayed)
            for index in range(count)
        ]
        arguments = requests, self.tokenizer, time.monotonic(), Inbox(self.service.deliveries), "prompt", at_once
        if self.service.admission.waiting.num_requests + min(count, at_once or count) <= MAX_QUEUED:
            self.generations += self.service.registry.submit(*arguments)
        else:
            with pytest.raises(ApiError, match="queue is full"):
                self.service.registry.submit(*arguments)

    def admit(self):
        free = [slot for slot in range(CAPACITY.max_num_seqs) if slot not in self.engine.running]
        if self.engine.waiting and free and self.engine.open:
            request_id = self.engine.waiting.pop(0)
            self.engine.running[free[0]] = request_id
            self.report(admitted=[(request_id, free[0])])

    def starting(self):
        """A step begins that is not reported yet."""
        known = {each.request.request_id: each for each in self.generations}
        if self.engine.open:
            announced = [each for each in self.engine.waiting[:2] if known[each].tries or known[each].request.relayed]
            self.service.session.receive(Starting(announced))

    def step(self):
        if self.engine.open:
            for request_id in self.engine.running.values():
                self.engine.tokens[request_id].append(65 + len(self.engine.tokens[request_id]) % 26)
            ended, self.engine.cancelled = self.engine.cancelled, []
            tokens = {slot: self.engine.tokens[each][-1] for slot, each in self.engine.running.items()}
            self.report(tokens=tokens, finished=ended)

    def finish(self, pick):
        if self.engine.open and self.engine.running:
            request_id = [*self.engine.running.values()][pick % len(self.engine.running)]
            self.engine.end(request_id)
            self.report(finished=[Finished(request_id, FinishReason.LENGTH)])
            self.expected[request_id] = self.engine.tokens[request_id]

    def take(self, pick):
        if streams := [each for each in self.generations if each.request.streaming]:
            streams[pick % len(streams)].take()

    def leave(self, pick):
        if self.generations:
            self.service.registry.end(self.generations[pick % len(self.generations)], FinishReason.ABORT)

    def die(self):
        if self.service.session.phase is not Phase.READY:
            return
        self.service.session._restarts = Restarts()  # their number is bounded elsewhere
        before = [each for each in self.generations if not each.done and each.phase is not RequestPhase.NEW]
        tried = {each: each.tries for each in before}
        had_slot = {each: each.had_slot for each in before}
        self.service.session.lose(None)
        self.most_waiting = max(MAX_QUEUED, sum(each.waiting for each in before))
        for each in before:
            lost = each.request.relayed or (had_slot[each] and tried[each] + 1 == MAX_TRIES)
            assert each.done is lost
            assert each.tries <= MAX_TRIES
            if not had_slot[each]:
                assert each.tries == 1
            if lost:
                code = "engine_failed" if had_slot[each] else "engine_restarting"
                assert (each.error.status, each.error.code) == (503, code)

    def back(self):
        if self.service.session.phase is Phase.RESTARTING:
            unfinished = [each.request.request_id for each in self.service.registry.unfinished()]
            self.connect()
            assert self.engine.configured
            assert self.engine.waiting == unfinished
            for each in self.generations:
                outside = each.done or each.phase is RequestPhase.NEW
                assert outside or self.engine.tokens[each.request.request_id] == each.token_ids

    def check(self):
        waiting = [each for each in self.generations if each.waiting]
        outside = [each for each in self.generations if each.phase is RequestPhase.NEW]
        later = [each for each in outside if not each.done]
        queue = self.service.admission.waiting
        expected = len(waiting), sum(each.num_known_tokens for each in waiting + later)
        assert (queue.num_requests, queue.num_tokens) == expected
        assert len(waiting) <= self.most_waiting, "a list takes places that it does not have"
        self.most_waiting = max(MAX_QUEUED, len(waiting))
        # A transition that is not possible raises.
        known = [each for each in self.generations if each not in outside]
        assert len(self.service.registry) == sum(each.phase is not RequestPhase.GONE for each in known)
        if not self.engine.open:
            assert len(self.service.registry) == sum(not each.done for each in known)
            assert self.service.registry.load().waiting == len(waiting)
        for each in later:
            assert each in each.later
            assert any(other.later is each.later and not other.wait_counted for other in waiting), (
                "it follows another one that waits"
            )
        for each in known:
            assert each.done is (each.phase in (RequestPhase.ENDED, RequestPhase.GONE))
            if self.engine.open and not each.done:
                has_slot = each.request.request_id in self.engine.running.values()
                assert has_slot is (each.phase is RequestPhase.RUNNING)
            if each.finish_reason is FinishReason.LENGTH:
                assert each.token_ids == self.expected[each.request.request_id]


PICK = st.integers(0, 5)
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.booleans(), st.sampled_from([False, False, True])),
    st.tuples(st.just("submit"), st.just(False), st.booleans(), st.integers(2, 9), st.integers(1, 3)),
    st.tuples(st.sampled_from(["admit", "starting", "step", "die", "back"])),
    st.tuples(st.sampled_from(["finish", "take", "leave"]), PICK),
)


@settings(deadline=None)
@given(st.lists(ACTIONS, min_size=10, max_size=60))
def test_every_request_ends_once_with_all_of_its_tokens_and_nothing_is_left_behind(actions):
    async def run():
        world = World()
        await world.open()
        for name, *arguments in actions:
            getattr(world, name)(*arguments)
            world.check()
        world.back()
        while not all(each.done for each in world.generations):
            world.admit()
            world.step()
            world.finish(0)
            world.check()
        seen = world.service.counts
        sent = [each for each in world.generations if each.phase is not RequestPhase.NEW]
        assert sum(seen.finished.values()) == len(sent), "each ends once"
        world.step()
        assert all(each.phase is RequestPhase.GONE for each in sent)
        for each in world.generations:
            assert each.timer is None or each.timer.cancelled()

    asyncio.run(run())

"""Random work for the real scheduler, recorded: a stand-in for the engine's loop and its runner."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import numpy as np

from inflight_cost.model import CostModel
from inflight_engine.cache.loading import LoadRates
from inflight_engine.recording.recorder import Recorder
from inflight_engine.request import FinishReason, Request, SamplingParams, Scheduling
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.scheduler import CannotFitError, Scheduler
from inflight_engine.step_work import work_of
from inflight_settings.limits import Limits, LimitsInForce
from inflight_settings.scheduling import ServiceClass

CLASSES = (ServiceClass("chat", 3.0, priority=0), ServiceClass("batch", 1.0, priority=2))
CONFIG = SchedulerConfig(
    Limits(6, 24), num_blocks=24, block_size=4, max_model_len=64, kv_headroom=0.05, classes=CLASSES, num_host_blocks=12
)
COSTS = (None, CostModel(0.1, 0.01, 0.03, 0.0, 1e-3), CostModel(0.3, 0.0, 0.2, 0.0, 0.0, curve=((1, 0.1), (8, 0.5))))
STOPS = (3, 7)
VOCAB = 40


class Keep(io.BytesIO):
    """A file whose bytes outlive `close`."""

    def close(self):
        self.content = self.getvalue()
        super().close()


class Workload:
    """Everything random comes from `seed`; what it counts shows a test that the recording holds what it should. With
    `lookahead` it does not follow the work of a step."""

    def __init__(self, config: SchedulerConfig = CONFIG, seed: int = 0, sink=None, lookahead=False, **recorder):
        self.random = random.Random(seed)
        self.costs = random.Random(seed)
        self.scoring = random.Random(seed)
        self.continuing = random.Random(f"continuing {seed}")
        self.loading = random.Random(f"loading {seed}")
        self.scheduler = Scheduler(config)
        self.config = config
        self.lookahead = lookahead
        self.under_way = None
        self.sink = Keep() if sink is None else sink
        self.recorder = Recorder(config, self.sink, is_cached=self._is_cached, **recorder)
        self.now = 1000 * self.random.random()
        self.requests: dict[int, Request] = {}
        self.tokens: dict[int, list[int]] = {}
        self.request_in: dict[int, int] = {}
        self.histories: list[list[int]] = []
        self.work = []
        self.next_id = 0
        self.num_added = self.num_steps = self.num_changes = 0
        self.hits = self.loaded = self.stopped = self.cancelled = self.failed = self.late_tokens = self.damaged = 0
        self.revision = 0
        self.disk = random.Random(f"disk {seed}")
        self.fetching = {}
        self.num_fetches = self.from_disk = 0

    def _is_cached(self, block_hash):
        return self.scheduler.is_cached(block_hash)

    def run(self, num_events: int) -> bytes:
        """Returns the file."""
        for _ in range(num_events):
            self.event()
        while self.scheduler.has_work or self.under_way is not None:
            self.step()
        self.recorder.close()
        return self.sink.content

    def event(self):
        if self.costs.random() < 0.005:
            cost = self.costs.choice(COSTS)
            self.scheduler.deadlines.cost = cost
            self.recorder.prefill_cost(cost)
        chance = self.random.random()
        if chance < 0.12:
            self.add()
        elif chance < 0.14 and self.requests:
            self.cancel(self.random.choice(list(self.requests)))
        elif chance < 0.155:
            self.set_limits()
        elif chance < 0.165 and len(self.config.classes) > 1:
            weights = {self.random.choice(self.config.classes).name: self.random.choice([0.5, 1.0, 4.0])}
            self.scheduler.set_class_weights(weights)
            self.recorder.weights(weights)
        elif chance < 0.175:
            rates = self.random.choice([None, LoadRates(1000.0, 1.5e5), LoadRates(1e5, 10.0)])
            self.scheduler.offload.rates = rates
            self.recorder.rates(rates)
        elif chance < 0.2 and self.requests:
            self.fetch()
        elif self.scheduler.has_work or self.under_way is not None:
            self.step(fails=chance > 0.999)

    def fetch(self):
        """Blocks of a request come from a disk, or some of them; other fetches may begin before."""
        if self.fetching and self.disk.random() < 0.5:
            number, most = self.fetching.popitem()
            count = self.disk.randint(0, most)
            self.scheduler.offload.fetched(number, count)
            self.recorder.fetched(number, count)
            self.from_disk += count
            return
        hashes = self.requests[self.disk.choice(list(self.requests))].block_hashes
        _, places = self.scheduler.offload.fetch(self.num_fetches, hashes)
        self.recorder.fetching(self.num_fetches, hashes)
        self.fetching[self.num_fetches] = len(places)
        self.num_fetches += 1

    def add(self):
        pick = self.random
        self.now += pick.expovariate(1.0)
        # Some go on where an earlier one ended, or begin as it did.
        prompt = list(pick.choice(self.histories)) if self.histories and pick.random() < 0.5 else []
        prompt = prompt[: pick.randrange(len(prompt) + 1)] + pick.choices(range(VOCAB), k=pick.randrange(1, 24))
        request = Request(
            self.next_id,
            np.array(prompt, np.int32),
            SamplingParams(
                max_tokens=pick.randrange(1, 32),
                stop_token_ids=pick.choice([(), STOPS]),
                prompt_logprobs=1 if self.scoring.random() < 0.1 else None,
            ),
            arrival_time=self.now,
            scheduling=Scheduling(
                priority=pick.randrange(4),
                service_class=pick.choice(self.config.classes).name,
                tenant=pick.choice(["", "", "red", "blue"]),
                cache_salt=pick.choice(["", "", "", "pepper"]),
                predicted_tokens=pick.choice([None, 5, 20]),
            ),
        )
        self.next_id += 1
        generated = [VOCAB - 1] * self.continuing.choice((0, 0, 0, 0, 1, 9))
        if len(generated) < request.sampling.max_tokens:
            request.output_token_ids = np.array(generated, np.int32)
            prompt = prompt + generated
        try:
            self.scheduler.add(request)
        except CannotFitError:
            return
        self.recorder.added(request)
        self.num_added += 1
        self.requests[request.request_id] = request
        self.tokens[request.request_id] = prompt

    def cancel(self, request_id):
        reason = self.random.choice([FinishReason.ABORT, FinishReason.STOP])
        assert self.scheduler.cancel(request_id, reason)
        self.recorder.cancelled(request_id, reason)
        self.forget(request_id)
        self.cancelled += 1

    def set_limits(self):
        capacity = self.config.capacity
        self.revision += 1
        self.scheduler.limits = Limits(
            self.random.randint(1, capacity.max_num_seqs), self.random.randint(1, capacity.max_num_batched_tokens)
        )
        self.recorder.limits(LimitsInForce(self.scheduler.limits, self.revision))

    def step(self, fails=False):
        """Runs a step with lookahead: plans the next step, then applies the one before."""
        oldest = self.under_way or self.launch()
        assert oldest is not None
        self.under_way = self.launch() if self.lookahead else None
        ahead = self.lookahead
        plan, owners, work, expected, seconds = oldest
        if fails:
            self.fail(plan, work, seconds, ahead)
            return
        self.work.append(expected)
        sampled = self.random.choices(range(VOCAB), k=len(owners))
        damaged = [start.slot for start in plan.starts if start.host_block_ids and self.loading.random() < 0.3]
        if damaged:
            self.scheduler.fail_loads(plan, damaged)
            self.damaged += len(damaged)
        left = self.scheduler.discarded_slots(plan)
        for slot, request_id, token in zip(plan.sampled_slots.tolist(), owners, sampled, strict=True):
            if slot in left:
                self.late_tokens += 1
            else:
                self.tokens[request_id].append(token)
        ended = self.scheduler.update(plan, np.array(sampled, np.int32))
        self.recorder.stepped(plan, work, ended, seconds, ahead=ahead, failed_loads=damaged)
        for request in ended:
            self.stopped += request.finish_reason is FinishReason.STOP
            self.forget(request.request_id)

    def launch(self):
        self.now += 0.05
        number = self.scheduler.num_steps
        plan = self.scheduler.schedule(self.now)
        if self.scheduler.admission.last_change == self.now:
            self.recorder.time_passed(number, self.now)
            self.num_changes += 1
        if plan is None:
            return None
        seconds = self.random.uniform(0.001, 0.01)
        for start in plan.starts:
            self.request_in[start.slot] = start.request_id
            self.hits += start.num_computed_tokens > len(start.host_block_ids) * self.config.block_size
            self.loaded += len(start.host_block_ids)
        self.num_steps += 1
        owners = [self.request_in[slot] for slot in plan.sampled_slots.tolist()]
        work = work_of(plan, self.scheduler.num_attended_tokens, self.config.block_size)
        return plan, owners, work, None if self.lookahead else self.work_of(plan, seconds), seconds

    def fail(self, plan, work, seconds, ahead):
        lost = self.scheduler.fail(plan)
        self.recorder.failed(plan, work, seconds, ahead=ahead)
        if self.under_way is not None:
            self.recorder.failed(self.under_way[0], self.under_way[2], 0.0)
            self.under_way = None
        for request in lost:
            self.scheduler.cancel(request.request_id, FinishReason.ERROR)
            self.recorder.cancelled(request.request_id, FinishReason.ERROR)
            self.forget(request.request_id)
        self.failed += 1

    def work_of(self, plan, seconds):
        """Work of the step, from the requests' own tokens and states; after `schedule`."""
        chunks = [range(chunk.start, chunk.start + chunk.length) for chunk in plan.prefills]
        copies = sum(len(start.host_block_ids) for start in plan.starts)
        copies += 0 if plan.stores is None else len(plan.stores.host_block_ids)
        return (
            round(seconds, 6),
            len(plan.decode_slots),
            sum(map(len, chunks)),
            sum(len(self.tokens[self.request_in[slot]]) for slot in plan.decode_slots.tolist()),
            sum(position + 1 for chunk in chunks for position in chunk),
            copies * self.config.block_size,
        )

    def forget(self, request_id):
        del self.requests[request_id]
        self.histories.append(self.tokens.pop(request_id))
        del self.histories[:-12]


def config(**changes) -> SchedulerConfig:
    return replace(CONFIG, **changes)

"""Random configurations and random loads for long runs of the scheduler against its model.

Pools are tiny and requests many, so that preemptions, loads, evictions and prefix hits happen all the time. One seed
gives one configuration and one load, always the same.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Set
from dataclasses import dataclass
from random import Random
from typing import Any, get_args

from inflight_cost.model import CostModel
from inflight_engine.cache.loading import LoadRates
from inflight_engine.request import FinishReason, RequestState
from inflight_engine.scheduling.plan import StepPlan
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.preemption import VICTIMS
from inflight_settings.scheduling import PreemptionMode, ServiceClass
from tests.engine.scheduling.driver import Driver, FailingSlots, Fails, Forces, never, no_slots, no_tokens, nothing
from tests.engine.scheduling.model_runner import VOCAB

TENANTS = ("", "", "", "a", "b")
MANY_TENANTS = tuple("abcdefgh")
# Computing against copying.
RATES = (None, LoadRates(1.0, 0.5), LoadRates(1.0, 0.9), LoadRates(1.0, 1.1), LoadRates(100.0, 5000.0))
# Of the order of the targets.
PREFILL_COSTS = (
    None,
    CostModel(0.125, 0.0, 0.0625, 0.0, 0.0),
    CostModel(0.25, 0.03125, 0.125, 0.0078125, 0.0078125, curve=((1.0, 0.0), (16.0, 0.5))),
)
# Powers of two: shares of service are exact then, in floats as in fixed point.
WEIGHTS = (0.25, 0.5, 1.0, 4.0)


@dataclass(frozen=True)
class Size:
    """Upper ends of what a configuration is drawn from.

    Attributes:
        room: of the KV cache, in longest requests, from and to: mostly less than those that run want.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    room: tuple[float, float]


TINY, WIDE = Size(8, 24, 40, (0.8, 2.5)), Size(48, 96, 120, (3, 8))
# Long outputs in many blocks.
LONG = Size(4, 200, 1500, (0.8, 2.5))
SIZES = (TINY,) * 36 + (WIDE,) * 3 + (LONG,)
LAST_EVENTS = 12


def random_fields(random: Random, deadlines: Random) -> dict[str, Any]:
    """Arguments of `Driver`; `deadlines`: draws what the `deadline` policy looks at."""
    size = random.choice(SIZES)
    block_size = random.choice((1, 2, 3, 4, 8))
    max_model_len = random.randint(6, size.max_model_len)
    num_blocks = math.ceil(random.uniform(*size.room) * max_model_len / block_size)
    names = random.choice((("default",), ("default",), ("default", "batch"), ("chat", "default", "batch")))
    return {
        "max_num_seqs": random.randint(1, size.max_num_seqs),
        "max_num_batched_tokens": random.randint(1, size.max_num_batched_tokens),
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_model_len": max_model_len,
        "kv_headroom": random.choice((0.0, 0.0, 0.03, 0.1, 0.4)),
        "policy": random.choice(sorted(POLICIES)),
        "priority_aging": random.choice((0.5, 5.0, 50.0)),
        "ttft_target": deadlines.choice((None, 1.0, 8.0)),
        "ttft_per_1k_tokens": deadlines.choice((0.0, 0.0, 20.0, 500.0)),
        "late_share": deadlines.choice((0.1, 0.25, 1.0)),
        "late_wait": deadlines.choice((2.0, 20.0, 1000.0)),
        "classes": tuple(
            ServiceClass(
                name,
                weight=random.choice(WEIGHTS),
                priority=random.randint(0, 2),
                ttft_target=deadlines.choice((None, 0.5, 4.0, 16.0)),
                request_timeout=deadlines.choice((None, 2.0, 8.0)),
            )
            for name in names
        ),
        "preemption": random.choice(get_args(PreemptionMode)),
        "preemption_victim": random.choice(sorted(VICTIMS)),
        "num_host_blocks": random.choice((0, num_blocks // 2, num_blocks, 4 * num_blocks)),
        "prefix_caching": random.random() < 0.7,
        "lookahead": random.random() < 0.5,
    }


class Workload:
    """A load for one configuration.

    Args:
        fixed: arguments of `Driver` that are not drawn.

    Attributes:
        counts: what happened: steps, starts, preemptions, swaps, hit_tokens, cancels by the state of the request, ...
        events: the last things done to the scheduler, oldest first.
    """

    def __init__(self, seed: int, **fixed: Any) -> None:
        self.random, self.failures = Random(seed), Random(f"failures {seed}")
        self.deadlines, self.memory = Random(f"deadlines {seed}"), Random(f"memory {seed}")
        self.scoring, self.continuing = Random(f"scoring {seed}"), Random(f"continuing {seed}")
        self.disk = Random(f"disk {seed}")
        self.fetched_from: dict[int, int] = {}
        """By number of a fetch, the number of steps from which it may end."""
        self.forcing, self.loading = Random(f"forcing {seed}"), Random(f"loading {seed}")
        self.unsigned = Random(f"unsigned {seed}")
        self.unsigned_share = self.unsigned.choice((0.0, 0.0, 0.0, 0.5))
        self.forced_share = self.forcing.choice((0.0, 0.05, 0.3))
        self.short_of_memory = self.memory.random() < 0.5
        self.fields = random_fields(self.random, self.deadlines) | fixed
        self.driver = Driver(**self.fields)
        self.counts: Counter[str] = Counter()
        self.events: deque[object] = deque(maxlen=LAST_EVENTS)
        self.now = 0.0
        config = self.driver.config
        self.classes = [each.name for each in config.classes]
        self.longest = min(config.max_model_len, config.num_blocks * config.block_size)
        self.stems = [self._tokens(self.longest) for _ in range(3)]
        self.longest_prompt = max(1, int((self.longest - 1) * self.random.choice((0.1, 0.3, 1.0))))
        self.tenants = self.random.choice((TENANTS, TENANTS, MANY_TENANTS))
        self.most_waiting = 2 * config.capacity.max_num_seqs + 2
        self.load = 0.0
        self.next_id = 0
        self.prompts: dict[int, list[int]] = {}

    def step(self) -> None:
        """Whatever happens between two steps, then a step."""
        random = self.random
        self.now += random.random()
        self.driver.now = self.now
        if random.random() < 0.02:
            self.load = random.choice((0.0, 0.2, 0.5, 0.8, 0.8))
        while random.random() < self.load and self.driver.scheduler.num_waiting < self.most_waiting:
            self._add()
        self._interfere()
        self._step(self._fails, self._meanwhile, self._failing_slots, self._forces, self._damaged)

    def finish(self) -> None:
        """Steps until nothing is left."""
        while self.driver.rules.requests or self.driver.under_way is not None:
            self._step()
        for number in list(self.driver.coming):
            self._fetched(number)
        self._step()

    def _interfere(self) -> None:
        random = self.random
        if random.random() < 0.08:
            random.choice((self._cancel, self._cancel, self._set_limits, self._set_rates, self._set_class_weights))()
        if self.deadlines.random() < 0.01:
            self._set_prefill_cost()
        if self.disk.random() < 0.1 and self.driver.rules.requests:
            request_id = self.disk.choice(list(self.driver.rules.requests))
            number = self.driver.fetch(request_id)
            self.events.append(("fetch", number, request_id, self.driver.coming[number][1]))
            self.counts["fetches"] += 1
            # Nothing comes before the steps that are under way now are taken in: two at most.
            self.fetched_from[number] = self.counts["steps"] + 2
        for number in list(self.driver.coming):
            if self.counts["steps"] >= self.fetched_from[number] and self.disk.random() < 0.2:
                self._fetched(number)

    def _meanwhile(self) -> None:
        if self.random.random() < 0.3:
            self.events.append("while the step is under way:")
            self._interfere()
            if self.random.random() < self.load / 4:
                self._add()

    def _fails(self, plan: StepPlan) -> bool:
        """Draws whether the runner breaks in a step, more often where there is more to break."""
        copies = plan.stores is not None or any(start.host_block_ids for start in plan.starts)
        fails = self.failures.random() < (0.05 if copies else 0.02 if self.driver.lookahead else 0.003)
        self.counts["failed"] += fails
        self.counts["failed_copies"] += fails and copies
        return fails

    def _failing_slots(self, plan: StepPlan) -> Set[int]:
        """Slots that a step has no memory for, in half of all configurations; oftener where others have found blocks
        of their chunk."""
        if not self.short_of_memory:
            return frozenset()
        found = {
            block
            for each in (plan, *self.driver.plans)
            for start in each.starts
            for block in start.block_ids[: start.num_computed_tokens // self.driver.config.block_size].tolist()
        }
        slots = [chunk.slot for chunk in plan.prefills if self.memory.random() < 0.01]
        for chunk in plan.prefills:
            sequence = self.driver.runner.slots.get(chunk.slot)
            begin = chunk.start // self.driver.config.block_size
            if sequence is not None and found.intersection(sequence.blocks[begin:]) and self.memory.random() < 0.8:
                slots.append(chunk.slot)
        self.counts["failed_chunks"] += len(set(slots))
        slots += [slot for slot in plan.decode_slots.tolist() if self.memory.random() < 0.001]
        failing = frozenset(slots)
        if failing:
            self.events.append(("no memory for slots", *failing))
        return failing

    def _damaged(self, plan: StepPlan) -> Set[int]:
        """Slots whose loads are not what was stored."""
        loading = [start.slot for start in plan.starts if start.host_block_ids]
        return frozenset(slot for slot in loading if self.loading.random() < 0.05)

    def _forces(self) -> int:
        return self.forcing.choice((1, 2, 3, 7, 30)) if self.forcing.random() < self.forced_share else 0

    def _step(
        self,
        fails: Fails = never,
        meanwhile: Callable[[], None] = nothing,
        failing_slots: FailingSlots = no_slots,
        forces: Forces = no_tokens,
        damaged: FailingSlots = no_slots,
    ) -> None:
        driver = self.driver
        loaded, hits, throttled = driver.rules.num_loaded, driver.runner.hit_tokens, driver.rules.num_throttled
        late_starts = driver.rules.queues.num_late
        late_tokens, put_back, waited = driver.late_tokens, driver.put_back, driver.waited
        damages = driver.damaged
        misled, forced, unforced = driver.misled, driver.forced, driver.unforced
        passed = driver.rules.num_passed
        counts = self.counts
        if driver.step(fails, meanwhile, failing_slots, forces, damaged) is None:
            counts["idle"] += 1
        counts["steps"] += 1
        counts["late_starts"] += driver.rules.queues.num_late - late_starts
        counts["late_tokens"] += driver.late_tokens - late_tokens
        counts["put_back"] += driver.put_back - put_back
        counts["misled"] += driver.misled - misled
        counts["forced"] += driver.forced - forced
        counts["unforced"] += driver.unforced - unforced
        counts["waited"] += driver.waited - waited
        counts["passed"] += driver.rules.num_passed - passed
        counts["throttled"] += driver.rules.num_throttled - throttled
        counts["loaded"] += driver.rules.num_loaded - loaded
        counts["damaged"] += driver.damaged - damages
        counts["hit_tokens"] += driver.runner.hit_tokens - hits
        counts["ahead"] += driver.under_way is not None
        if counts["steps"] % 8 == 0:
            driver.check_uncomputed()
        for plan in driver.plans:
            self.events.append(plan)
            counts["starts"] += len(plan.starts)
            counts["stored"] += 0 if plan.stores is None else len(plan.stores.block_ids)
            counts["preemptions"] += len(plan.preemptions)
            counts["extensions"] += len(plan.extensions)
            counts["chunked"] += any(not chunk.samples for chunk in plan.prefills)

    def _tokens(self, count: int) -> list[int]:
        return self.random.choices(range(VOCAB), k=count)

    def _prompt(self) -> list[int]:
        """Often with a beginning that others have too, sometimes a conversation's next turn."""
        random, longest = self.random, self.longest_prompt
        kind = random.random()
        if kind < 0.3:
            return self._tokens(random.randint(1, longest))
        if kind < 0.45 and self.driver.outputs:
            earlier = random.choice(list(self.driver.outputs)[-8:])
            return (self.prompts[earlier] + self.driver.outputs[earlier])[:longest]
        stem = random.choice(self.stems)[: random.randint(1, longest)]
        return (stem + self._tokens(random.randint(0, 4)))[:longest]

    def _add(self) -> None:
        random = self.random
        prompt = self._prompt()
        fields: dict[str, Any] = {
            "arrival_time": self.now,
            "priority": random.randint(-2, 2),
            "service_class": random.choice(self.classes),
            "tenant": random.choice(self.tenants),
            "cache_salt": "salt" if random.random() < 0.1 else "",
            "predicted_tokens": random.choice((None, random.randint(1, 30))),
            "scored": self.scoring.random() < 0.1,
            "generated": self.continuing.choice((*[0] * 9, 1, 3, 20)),
            "resumes": self.unsigned.random() >= self.unsigned_share,
        }
        stop = tuple(random.sample(range(VOCAB), random.choice((0, 0, 0, 1, 3))))
        most = self.longest - len(prompt)
        max_tokens = random.choice((most, random.randint(1, most)))
        self.events.append(("add", self.next_id, prompt, max_tokens, stop, fields))
        self.driver.add(self.next_id, prompt, max_tokens, stop, **fields)
        self.prompts[self.next_id] = prompt
        self.next_id += 1

    def _cancel(self) -> None:
        rules = self.driver.rules
        if not rules.requests:
            return
        state = self.random.choice(sorted({self._state(request_id) for request_id in rules.requests}))
        request_id = self.random.choice([each for each in rules.requests if self._state(each) == state])
        self.events.append(("cancel", request_id, state))
        assert self.driver.cancel(request_id, self.random.choice((FinishReason.ABORT, FinishReason.STOP)))
        assert not self.driver.cancel(request_id)
        self.counts[f"cancelled_{state}"] += 1

    def _state(self, request_id: int) -> str:
        state = self.driver.rules.requests[request_id].state
        if state is RequestState.RUNNING:
            return "decoding" if self.driver.runner.sequences[request_id].decodes else "prefilling"
        return state.value

    def _fetched(self, number: int) -> None:
        most = len(self.driver.coming[number][1])
        count = self.disk.choice((0, most, most, self.disk.randint(0, most)))
        self.events.append(("fetched", number, count))
        self.driver.fetched(number, count)
        self.counts["from_disk"] += count

    def _set_limits(self) -> None:
        capacity = self.driver.config.capacity
        limits = (
            self.random.randint(1, capacity.max_num_seqs),
            # Often fewer than decode.
            self.random.randint(1, min(capacity.max_num_batched_tokens, self.random.choice((2, 1_000_000, 1_000_000)))),
        )
        self.events.append(("set_limits", *limits))
        self.driver.set_limits(*limits)
        self.counts["limit_changes"] += 1

    def _set_rates(self) -> None:
        rates = self.random.choice(RATES)
        self.events.append(("set_rates", rates))
        self.driver.set_rates(rates)
        self.counts["rate_changes"] += 1

    def _set_prefill_cost(self) -> None:
        cost = self.deadlines.choice(PREFILL_COSTS)
        self.events.append(("set_prefill_cost", cost))
        self.driver.set_prefill_cost(cost)
        self.counts["prefill_cost_changes"] += 1

    def _set_class_weights(self) -> None:
        weights = {name: self.random.choice(WEIGHTS) for name in self.classes if self.random.random() < 0.6}
        self.events.append(("set_class_weights", weights))
        self.driver.set_class_weights(weights)
        self.counts["weight_changes"] += 1


def described(event: object) -> str:
    """A line for an event of `Workload.events`."""
    if not isinstance(event, StepPlan):
        return " ".join(map(str, event)) if isinstance(event, tuple) else str(event)
    parts = [f"step {event.step}: {event.num_tokens} tokens"]
    for each in event.preemptions:
        parts.append(f"preempts request {each.request_id} (slot {each.slot})")
    if event.stores is not None:
        parts.append(f"stores blocks {event.stores.block_ids.tolist()} to {event.stores.host_block_ids.tolist()}")
    if event.releases:
        parts.append(f"releases {list(event.releases)}")
    for start in event.starts:
        parts.append(
            f"starts request {start.request_id} (slot {start.slot}, {start.num_computed_tokens} of"
            f" {len(start.token_ids)} tokens computed,"
            f" blocks {start.block_ids.tolist()}, host {list(start.host_block_ids)})"
        )
    if event.growth is not None:
        parts.append(f"grows slots {event.growth.slots.tolist()} by blocks {event.growth.block_ids.tolist()}")
    for chunk in event.prefills:
        parts.append(f"prefills slot {chunk.slot} [{chunk.start}, {chunk.start + chunk.length})")
    for each in event.extensions:
        parts.append(f"extends slot {each.slot} from {each.num_computed_tokens} to {len(each.token_ids)} tokens")
    parts.append(f"decodes {event.decode_slots.tolist()}")
    return ", ".join(parts)

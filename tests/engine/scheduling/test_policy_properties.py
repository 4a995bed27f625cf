"""The queues against a model written from the rules: it counts every token in every tick, scans for the least, and
keeps no heap. And the bounds that the rules promise, on servers that run for a while."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inflight_engine.request import Request, RequestState, SamplingParams
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.policies import POLICIES
from inflight_engine.scheduling.queues import WaitingQueues
from inflight_settings.limits import Limits
from inflight_settings.scheduling import ServiceClass
from tests.engine.scheduling_fields import gathered

AGING = 3.0
LATE_SHARE = 0.1
LATE_WAIT = 6.0
PICKS_WHILE_OVERDUE = 5


DEFAULT = (ServiceClass(),)


def config(policy, classes=DEFAULT):
    waits = {"priority_aging": AGING, "late_share": LATE_SHARE, "late_wait": LATE_WAIT}
    return SchedulerConfig(Limits(8, 64), 100, 4, 400, policy=policy, classes=classes, **waits)


def new_request(order, prompt, max_tokens, **fields):
    fields.setdefault("arrival_time", float(order))
    return Request(order, np.zeros(prompt, np.int32), SamplingParams(max_tokens), order=order, **gathered(fields))


class Counters:
    """Service of clients, brought up to date in every tick."""

    def __init__(self, units):
        self.units = units
        self.service, self.decoding, self.waiting = {}, {}, {}
        self.last = None
        """The client that waited last."""

    def level(self):
        if self.waiting:
            return min(self.service[client] for client in self.waiting)
        return 0 if self.last is None else self.service[self.last]

    def know(self, client):
        if client not in self.service:
            self.service[client], self.decoding[client] = self.level(), 0

    def start_waiting(self, client, rank):
        level = self.level()
        self.know(client)
        self.service[client] = max(self.service[client], level)
        for each in list(self.service):
            busy = each == client or each in self.waiting or self.decoding[each]
            if not busy and self.service[each] <= level:
                del self.service[each], self.decoding[each]
        self.waiting[client] = rank

    def stop_waiting(self, client):
        del self.waiting[client]
        self.last = client

    def least(self):
        return min(self.waiting, key=lambda client: (self.service[client], self.waiting[client]), default=None)

    def serve(self, client, amount):
        self.know(client)
        self.service[client] += amount * self.units.get(client, 1)

    def decode(self, client, change):
        self.know(client)
        self.decoding[client] += change

    def tick(self):
        for client, count in self.decoding.items():
            self.serve(client, 2 * count)


class Model:
    """`classes`: (name, weight) in the order of the configuration."""

    def __init__(self, policy, classes):
        self.policy = policy
        self.names = [name for name, _ in classes]
        self.classes = Counters({name: Fraction(1) / Fraction(weight) for name, weight in classes})
        self.tenants = {name: Counters({}) for name in self.names}
        self.new, self.resumed = [], []
        self.now = -1.0
        self.passed_over = {name: [] for name in self.names}
        """Prompt tokens of those in time that were admitted while late ones waited, since the last late one."""

    def _of(self, service_class, tenant=None):
        return [
            each
            for each in self.new
            if each.scheduling.service_class == service_class and (tenant is None or each.scheduling.tenant == tenant)
        ]

    def _resumed_of(self, service_class):
        return [each for each in self.resumed if each.scheduling.service_class == service_class]

    def push(self, request):
        name = request.scheduling.service_class
        if not self._of(name) and not self._resumed_of(name):
            self.classes.start_waiting(name, self.names.index(name))
        if request.state is not RequestState.WAITING:
            self.resumed.append(request)
            return
        if not self._of(name, request.scheduling.tenant):
            self.tenants[name].start_waiting(request.scheduling.tenant, request.order)
        self.new.append(request)

    def head(self):
        if not self.new and not self.resumed:
            return None
        name = self.classes.least()
        waiting, resumed = self._of(name), self._resumed_of(name)
        if self.policy == "priority":
            waiting += resumed
        elif resumed:
            return min(resumed, key=lambda each: each.order)
        match self.policy:
            case "fcfs":
                return min(waiting, key=lambda each: each.order)
            case "sjf":
                return min(waiting, key=lambda each: (each.predicted_output_tokens, each.order))
            case "priority":
                return min(
                    waiting,
                    key=lambda each: (
                        each.scheduling.priority + Fraction(each.arrival_time) / Fraction(AGING),
                        each.order,
                    ),
                )
            case "fair":
                tenant = self.tenants[name].least()
                return min((each for each in waiting if each.scheduling.tenant == tenant), key=lambda each: each.order)
            case "deadline":
                return self.by_deadline(name)

    def by_deadline(self, name):
        waiting = self._of(name)
        late = [each for each in waiting if self.is_late(each)]
        in_time = [each for each in waiting if not self.is_late(each)]
        oldest = min(late, key=lambda each: each.order, default=None)
        if oldest is None or not in_time:
            return min(in_time, key=lambda each: each.order, default=oldest)
        passed_over = self.passed_over[name]
        turn = sum(passed_over) >= (round(1 / LATE_SHARE) - 1) * oldest.num_prompt_tokens
        overdue = oldest.arrival_time <= self.now - LATE_WAIT
        turn |= overdue and len(passed_over) >= PICKS_WHILE_OVERDUE - 1
        return oldest if turn else min(in_time, key=lambda each: each.order)

    def is_late(self, request):
        return request.latest_start < self.now

    def standings(self):
        """Who is late, and in which classes the first of them has waited for `LATE_WAIT`."""
        late = [each for each in self.new if self.is_late(each)]
        overdue = {each.scheduling.service_class for each in late if each.arrival_time <= self.now - LATE_WAIT}
        return late, overdue

    def remove(self, request):
        name = request.scheduling.service_class
        was_new = request in self.new
        (self.new if was_new else self.resumed).remove(request)
        if not self._of(name) and not self._resumed_of(name):
            self.classes.stop_waiting(name)
        if was_new and not self._of(name, request.scheduling.tenant):
            self.tenants[name].stop_waiting(request.scheduling.tenant)

    def admitted(self, request, num_tokens):
        name = request.scheduling.service_class
        if request.state is RequestState.WAITING and self.is_late(request):
            self.passed_over[name] = []
        elif request.state is RequestState.WAITING and any(map(self.is_late, self._of(name))):
            self.passed_over[name].append(request.num_prompt_tokens)
        amount = 2 + (0 if request.num_preemptions else num_tokens)
        self.classes.serve(request.scheduling.service_class, amount)
        self.tenants[request.scheduling.service_class].serve(request.scheduling.tenant, amount)

    def decode(self, request, change):
        self.classes.decode(request.scheduling.service_class, change)
        self.tenants[request.scheduling.service_class].decode(request.scheduling.tenant, change)

    def tick(self):
        for counters in (self.classes, *self.tenants.values()):
            counters.tick()


# Powers of two: their reciprocals are exact, in fixed point as in fractions, so that equal counters are equal in both.
WEIGHTS = st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0])


class QueuesMachine(RuleBasedStateMachine):
    """Arrivals, admissions, decodes, pauses, preemptions, cancellations anywhere, and live changes of weights."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)), weights=st.lists(WEIGHTS, min_size=1, max_size=3))
    def start(self, policy, weights):
        classes = [(f"class {index}", weight) for index, weight in enumerate(weights)]
        self.queues = WaitingQueues(config(policy, tuple(ServiceClass(name, weight) for name, weight in classes)))
        self.model = Model(policy, classes)
        self.waiting, self.prefilling, self.decoding, self.paused = [], [], [], []
        self.clock = self.num_arrivals = 0
        self.now = 0.0

    @rule(
        data=st.data(),
        count=st.integers(1, 3),
        tenant=st.sampled_from("abcde"),
        sizes=st.tuples(st.integers(1, 12), st.integers(1, 12)),
        priority=st.integers(-2, 2),
        patience=st.sampled_from([0.0, 1.0, 5.0, math.inf]),
    )
    def arrive(self, data, count, tenant, sizes, priority, patience):
        name = data.draw(st.sampled_from(self.model.names))
        for _ in range(count):
            fields = {"tenant": tenant, "priority": priority, "service_class": name, "arrival_time": self.now}
            request = new_request(self.num_arrivals, *sizes, **fields)
            request.latest_start = self.now + patience
            self.num_arrivals += 1
            self._push(request)

    def _push(self, request):
        self.queues.push(request, self.clock)
        self.model.push(request)
        self.waiting.append(request)

    @precondition(lambda self: self.waiting)
    @rule(cached=st.integers(0, 3))
    def admit(self, cached):
        request = self.queues.pop(self.clock)
        assert request is self.model.head()
        self.model.remove(request)
        self.waiting.remove(request)
        num_tokens = max(1, request.num_prompt_tokens - cached)
        self.queues.admitted(request, num_tokens, self.clock)
        self.model.admitted(request, num_tokens)
        request.state = RequestState.RUNNING
        self.prefilling.append(request)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0]))
    def pass_time(self, seconds):
        self.now += seconds
        before = self.model.standings()
        self.model.now = self.now
        changed = self.queues.pass_time(self.now)
        if self.model.policy == "deadline":
            assert changed == (before != self.model.standings())

    @precondition(lambda self: self.prefilling or self.paused)
    @rule(data=st.data())
    def start_decoding(self, data):
        request = self._take(data, self.prefilling, self.paused)
        self.queues.decode_started(request, self.clock)
        self.model.decode(request, 1)
        self.decoding.append(request)

    @precondition(lambda self: self.decoding)
    @rule(data=st.data(), then=st.sampled_from(["ends", "pauses", "is preempted"]))
    def stop_decoding(self, data, then):
        request = self._take(data, self.decoding)
        self.queues.decode_ended(request, self.clock)
        self.model.decode(request, -1)
        if then == "pauses":
            self.paused.append(request)
        elif then == "is preempted":
            self._preempt(request)

    @precondition(lambda self: self.prefilling or self.paused)
    @rule(data=st.data(), preempted=st.booleans())
    def lose_the_slot_outside_decode(self, data, preempted):
        request = self._take(data, self.prefilling, self.paused)
        if preempted:
            self._preempt(request)

    def _preempt(self, request):
        request.state = RequestState.PREEMPTED
        request.num_preemptions += 1
        self._push(request)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_while_it_waits(self, data):
        request = self._take(data, self.waiting)
        self.queues.remove(request)
        self.model.remove(request)

    @rule(ticks=st.integers(1, 5))
    def decode(self, ticks):
        for _ in range(ticks):
            self.model.tick()
        self.clock += ticks

    @rule(data=st.data(), weight=WEIGHTS)
    def change_weight(self, data, weight):
        name = data.draw(st.sampled_from(self.model.names))
        self.queues.set_weights({name: weight}, self.clock)
        self.model.classes.units[name] = 1 / Fraction(weight)
        assert self.queues.weights[name] == weight

    def _take(self, data, *lists):
        request = data.draw(st.sampled_from([each for some in lists for each in some]), label="request")
        for some in lists:
            if request in some:
                some.remove(request)
        return request

    @invariant()
    def the_head_is_the_models(self):
        if not hasattr(self, "queues"):
            return
        assert self.queues.head(self.clock) is self.model.head()
        assert len(self.queues) == len(self.waiting)


QueuesMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
test_any_interleaving_gives_the_heads_of_the_model = QueuesMachine.TestCase


class Server:
    """Admits while the head's prompt and output fit in what is left of the KV cache, and fewer than `max_num_seqs` run;
    a tick decodes everything once. Every client always has requests waiting.

    Args:
        attribute: of requests: whose they are.
        sizes: by client, (prompt, output) of its requests, in turn.

    Attributes:
        history: by tick, the service of each client, before the tick; the first is that of the start.
    """

    def __init__(self, queues, attribute, sizes, num_kv_tokens, max_num_seqs=1000):
        self.queues, self.attribute, self.sizes = queues, attribute, sizes
        self.free, self.max_num_seqs = num_kv_tokens, max_num_seqs
        self.clock = self.orders = 0
        self.sent, self.service, self.running = dict.fromkeys(sizes, 0), dict.fromkeys(sizes, 0), {}
        self.history = [dict(self.service)]
        for client in sizes:
            self.send(client)

    def send(self, client):
        size = self.sizes[client][self.sent[client] % len(self.sizes[client])]
        self.sent[client] += 1
        self.queues.push(new_request(self.orders, *size, **{self.attribute: client}), self.clock)
        self.orders += 1

    def run(self, ticks):
        for _ in range(ticks):
            while len(self.running) < self.max_num_seqs:
                head = self.queues.head(self.clock)
                if head.max_total_tokens > self.free:
                    break
                self.start(head)
            self.history.append(dict(self.service))
            self.end_the_done()
            self.clock += 1
            for request in self.running:
                self.service[getattr(request.scheduling, self.attribute)] += 2
                self.running[request] -= 1
            self.end_the_done()
        return self

    def start(self, request):
        client = getattr(request.scheduling, self.attribute)
        self.send(client)
        assert self.queues.pop(self.clock) is request
        self.free -= request.max_total_tokens
        self.queues.admitted(request, request.num_prompt_tokens, self.clock)
        self.service[client] += request.num_prompt_tokens + 2
        self.queues.decode_started(request, self.clock)
        self.running[request] = request.sampling.max_tokens - 1

    def end_the_done(self):
        for request in [each for each, left in self.running.items() if left == 0]:
            del self.running[request]
            self.queues.decode_ended(request, self.clock)
            self.free += request.max_total_tokens


def leads(history, weights, one, other):
    """By how much weighted service `one` is ahead of `other`, by tick, counted from the first."""
    ahead = [each[one] / weights[one] - each[other] / weights[other] for each in history]
    return [each - ahead[0] for each in ahead]


def widest_gap(history, weights):
    """Largest difference of the weighted service that two clients received between any two moments."""
    pairs = [leads(history, weights, one, other) for one in weights for other in weights]
    return max(max(each) - min(each) for each in pairs)


SIZES = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=4)


@given(sizes=st.lists(SIZES, min_size=2, max_size=4), num_kv_tokens=st.integers(60, 200))
@settings(max_examples=40, deadline=None)
def test_fair_keeps_backlogged_tenants_within_the_papers_bound(sizes, num_kv_tokens):
    # Sheng et al. 2024, theorem 4.4: |W_f - W_g| <= 2 max(w_p L_input, w_q M) between any two moments.
    tenants = {f"tenant {index}": each for index, each in enumerate(sizes)}
    server = Server(WaitingQueues(config("fair")), "tenant", tenants, num_kv_tokens).run(300)
    longest_input = max(prompt for each in sizes for prompt, _ in each)
    assert widest_gap(server.history, dict.fromkeys(tenants, 1)) <= 2 * max(longest_input, 2 * num_kv_tokens)


def test_the_bound_is_one_that_fcfs_breaks():
    tenants = {"short": [(1, 1)], "long": [(30, 30)], "mixed": [(5, 20), (10, 2)]}
    bound = 2 * max(30, 2 * 60)
    gap = {}
    for policy in ("fair", "fcfs"):
        server = Server(WaitingQueues(config(policy)), "tenant", tenants, 60).run(300)
        gap[policy] = widest_gap(server.history, dict.fromkeys(tenants, 1))
    assert gap["fair"] <= bound < gap["fcfs"]


@given(
    sizes=st.lists(SIZES, min_size=2, max_size=4),
    weights=st.lists(st.floats(0.1, 10), min_size=8, max_size=8),
    policy=st.sampled_from(["fcfs", "fair"]),
)
@settings(max_examples=40, deadline=None)
def test_class_shares_follow_the_weights_within_one_request_also_after_a_change(sizes, weights, policy):
    # One at a time, so nobody is ahead by more than the request it was given while it was behind.
    classes = {f"class {index}": each for index, each in enumerate(sizes)}
    before, after = dict(zip(classes, weights[:4], strict=False)), dict(zip(classes, weights[4:], strict=False))
    largest = {name: max(prompt + 2 * output for prompt, output in each) for name, each in classes.items()}
    queues = WaitingQueues(config(policy, tuple(ServiceClass(name, weight) for name, weight in before.items())))
    server = Server(queues, "service_class", classes, 60, max_num_seqs=1).run(200)
    until_change, at_change = server.history, dict(server.service)
    server.history = [at_change]
    queues.set_weights(after, server.clock)
    server.run(200)
    for one in classes:
        for other in classes:
            ahead = leads(until_change, before, one, other)
            assert max(ahead) <= largest[one] / before[one] + 1e-6
            # Counted from a moment when `other` may have been ahead by a request.
            ahead = leads(server.history, after, one, other)
            assert max(ahead) <= largest[other] / before[other] + largest[one] / after[one] + 1e-6


@given(
    arrivals=st.lists(st.tuples(st.floats(0, 5), st.integers(-3, 3), st.booleans()), min_size=1, max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_a_request_is_overtaken_only_within_its_priority_times_the_aging(arrivals):
    """(seconds since the one before, priority, whether one is served afterwards)"""
    queues = WaitingQueues(config("priority"))
    now, waiting = 0.0, []

    def serve():
        request = queues.pop(0)
        waiting.remove(request)
        for other in waiting:
            if request.arrival_time > other.arrival_time:
                assert request.arrival_time - other.arrival_time < (other.scheduling.priority - -3) * AGING + 1e-9

    for order, (gap, priority, served) in enumerate(arrivals):
        now += gap
        waiting.append(new_request(order, 1, 1, priority=priority, arrival_time=now))
        queues.push(waiting[-1], 0)
        if served:
            serve()
    while waiting:
        serve()


LONGEST = 9
EVENTS = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "serve", "wait"]), st.floats(0, 3), st.integers(1, LONGEST)),
    max_size=120,
)
"""(what happens; seconds until a request is late, or that pass; prompt tokens)"""


def picks(share, events, bound, spent, is_counted):
    """Plays events on a queue by deadline.

    Args:
        bound: bound(request): what may be spent for it, and for each that waits behind it.
        spent: spent(request): what its pick spends.
        is_counted: is_counted(request, now) says from when on the bounds hold for a late request.

    Yields:
        At each pick the request, and what is left to each counted one, it included, before it is spent.
    """
    queues = WaitingQueues(replace(config("deadline"), late_share=share))
    now, waiting, left = 0.0, [], {}
    for order, (what, seconds, prompt) in enumerate(events):
        if what == "arrive":
            waiting.append(new_request(order, prompt, 1, arrival_time=now))
            waiting[-1].latest_start = now + seconds
            queues.push(waiting[-1], 0)
        elif what == "wait":
            now += seconds
            queues.pass_time(now)
            for place, each in enumerate(waiting):
                if each.latest_start < now and is_counted(each, now):
                    left.setdefault(each, sum(map(bound, waiting[: place + 1])))
        elif waiting:
            request = queues.pop(0)
            waiting.remove(request)
            yield request, dict(left)
            left = {each: bound - spent(request) for each, bound in left.items() if each is not request}


@given(share=st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0]), events=EVENTS)
@settings(max_examples=200, deadline=None)
def test_a_late_request_is_served_within_its_share_of_tokens_after_each_one_that_came_before_it(share, events):
    def bound(request):
        return request.num_prompt_tokens / share + LONGEST

    passed_over = 0
    for request, left in picks(share, events, bound, lambda request: request.num_prompt_tokens, lambda *_: True):
        oldest_late = min(left, key=lambda each: each.order, default=None)
        if request is oldest_late or oldest_late is None:
            passed_over = 0
        else:
            own = oldest_late.num_prompt_tokens
            assert own / (own + passed_over) > share - 1e-9, "its turn had come"
            passed_over += request.num_prompt_tokens
        assert min(left.values(), default=1) > 0


@given(share=st.sampled_from([0.01, 0.1, 0.25, 1.0]), events=EVENTS)
@settings(max_examples=200, deadline=None)
def test_a_late_request_that_has_waited_for_late_wait_is_served_within_five_picks_for_each_before_it(share, events):
    def has_waited(request, now):
        return request.arrival_time <= now - LATE_WAIT

    for request, left in picks(share, events, lambda _: PICKS_WHILE_OVERDUE, lambda _: 1, has_waited):
        left.pop(request, None)
        assert min(left.values(), default=2) > 1


@pytest.mark.parametrize(
    ("policy", "waits_for_good"),
    [("priority", False), ("fcfs", False), ("fair", False), ("deadline", False), ("sjf", True)],
)
def test_who_starves_under_a_flood_of_requests_that_look_better(policy, waits_for_good):
    """Two arrive for each that is served; under aging a step of priority is worth three seconds."""
    queues = WaitingQueues(config(policy))
    unlucky = new_request(0, 1, 100, priority=5, tenant="unlucky", latest_start=0.0)
    queues.push(unlucky, 0)
    served = []
    for order in range(1, 201):
        queues.push(new_request(order, 1, 1, arrival_time=order / 2, tenant="flood"), 0)
        queues.pass_time(order / 2)
        if order % 2 == 0:
            served.append(queues.pop(0))
            queues.admitted(served[-1], 1, 0)
    assert (unlucky not in served) == waits_for_good
    if policy == "priority":
        overtaken_by = served[: served.index(unlucky)]
        assert max(each.arrival_time for each in overtaken_by) < 5 * AGING
    if policy == "deadline":
        assert served.index(unlucky) < 1 / LATE_SHARE

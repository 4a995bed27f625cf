"""Who of those without a slot is next: a class by its share, in it those that resume, then the others by the policy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight_engine.request import Request, RequestState
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_policies.deadline import OVERDUE_SHARE
from tests.engine.scheduling.fair_share import FairShare


@dataclass(slots=True, eq=False)
class Known:
    """A request between its arrival and its end.

    Attributes:
        order: place in the order of arrival.
        latest_start: until when it must start to keep its TTFT target, by the predictions of when it came.
        state: what it must be in.
        decoding: it generates a token in each step: it is past its prefill, and within the budget.
        ending: it has its full length with a step that is not taken in yet.
        continued: it came with tokens, and resumes with them.
    """

    request: Request
    order: int
    latest_start: float = math.inf
    state: RequestState = RequestState.WAITING
    num_preemptions: int = 0
    decoding: bool = False
    ending: bool = False
    continued: bool = False


class QueueRules:
    """
    Attributes:
        waiting: requests that never had a slot, by class. paused: those that were preempted, and
            those that came with tokens, by class too.
        class_weights: in force. targets: of TTFT, by class. now: when the scheduler is asked.
        num_late: requests that were late when they were admitted.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.waiting: dict[str, dict[int, Known]] = {each.name: {} for each in config.classes}
        self.paused: dict[str, dict[int, Known]] = {each.name: {} for each in config.classes}
        self.class_weights = {each.name: each.weight for each in config.classes}
        self.targets = {
            each.name: config.ttft_target if each.ttft_target is None else each.ttft_target for each in config.classes
        }
        self.now = -math.inf
        self.num_late = 0
        self._passed_over: dict[str, list[int]] = {name: [] for name in self.waiting}
        """Prompt tokens of the requests in time that were admitted while late ones waited, since the last late one."""
        self._ranks = {name: rank for rank, name in enumerate(self.waiting)}
        self._classes = FairShare(self.class_weights)
        self._tenants = {name: FairShare({}) for name in self.waiting} if config.policy == "fair" else {}

    def __len__(self) -> int:
        return sum(map(len, self.paused.values())) + sum(map(len, self.waiting.values()))

    def add(self, known: Known) -> None:
        request = known.request
        if known.continued:
            self.pause(known)
            return
        self._class_starts(request.scheduling.service_class)
        if self._tenants and not self._tenant_waits(request):
            self._tenants[request.scheduling.service_class].starts_waiting(request.scheduling.tenant)
        self.waiting[request.scheduling.service_class][request.request_id] = known

    def pause(self, known: Known) -> None:
        """It was preempted, or came with tokens."""
        name = known.request.scheduling.service_class
        self._class_starts(name)
        self.paused[name][known.request.request_id] = known

    def _class_starts(self, name: str) -> None:
        if not self.waiting[name] and not self.paused[name]:
            self._classes.starts_waiting(name)

    def remove(self, known: Known) -> None:
        """It ended, or was admitted."""
        request = known.request
        name = request.scheduling.service_class
        was_paused = self.paused[name].pop(request.request_id, None) is not None
        if not was_paused:
            del self.waiting[name][request.request_id]
        if not self.waiting[name] and not self.paused[name]:
            self._classes.stops_waiting(name)
        if not was_paused and self._tenants and not self._tenant_waits(request):
            self._tenants[name].stops_waiting(request.scheduling.tenant)

    def head(self) -> Known | None:
        """Nobody may be admitted before this one, as long as it fits."""
        return self._first(self._classes.in_order(self._ranks)[0]) if len(self) else None

    def beside(self, due: Known) -> list[Known]:
        """Returns who may be admitted before the one that is due and does not fit: the first five of each class in the
        order in which they would be admitted, or those of as many tenants; the class that is next comes first. Behind
        one that resumes there is only the first new one, where that is the one that is due."""
        found: list[Known] = []
        for name in self._classes.in_order(self._ranks):
            first = self._first(name)
            if first.state is RequestState.WAITING:
                found += self._next_new(name, first)
            elif first is not due:
                found.append(first)
            elif self.waiting[name] and self.config.policy != "priority":
                found.append(self._first_new(name))
        return [each for each in found if each is not due]

    def _next_new(self, name: str, first: Known) -> list[Known]:
        """The first of a class, which is new, and the four behind it."""
        queue = list(self.waiting[name].values())
        match self.config.policy:
            case "priority":
                return sorted([*self.paused[name].values(), *queue], key=self._key)[:5]
            case "fair":
                tenants = self._tenants[name].in_order()[:5]
                if len(tenants) == 1:
                    return queue[:5]
                return [next(each for each in queue if each.request.scheduling.tenant == one) for one in tenants]
            case "deadline":
                others = [each for each in queue if each is not first]
                return [first, *sorted(others, key=lambda each: (self.is_late(each), each.order))[:4]]
        return sorted(queue, key=self._key)[:5]

    def _first(self, name: str) -> Known:
        paused, queue = self.paused[name], self.waiting[name]
        if self.config.policy == "priority":
            # Of one priority those that resume are the first to have come.
            return min([*paused.values(), *queue.values()], key=self._key)
        if paused:
            return min(paused.values(), key=lambda each: each.order)
        return self._first_new(name)

    def _first_new(self, name: str) -> Known:
        """Returns the first that never had a slot."""
        queue = self.waiting[name].values()
        if self._tenants:
            tenant = self._tenants[name].in_order()[0]
            return next(each for each in queue if each.request.scheduling.tenant == tenant)
        return self._by_deadline(name) if self.config.policy == "deadline" else min(queue, key=self._key)

    def is_late(self, known: Known) -> bool:
        return known.latest_start < self.now

    def _by_deadline(self, name: str) -> Known:
        """The oldest that can keep its target; where late ones wait, the oldest of them has its turn, or all there
        is. Its turn comes when it is a small share of the prompt tokens, and more often once it has waited for too
        long."""
        queue = self.waiting[name].values()
        in_time = [each for each in queue if not self.is_late(each)]
        late = [each for each in queue if self.is_late(each)]
        if not late or not in_time:
            return min(late or in_time, key=lambda each: each.order)
        oldest = min(late, key=lambda each: each.order)
        own, passed_over = oldest.request.num_prompt_tokens, self._passed_over[name]
        turn = own / (own + sum(passed_over)) <= self.config.late_share + 1e-9
        if oldest.request.arrival_time <= self.now - self.config.late_wait:
            turn = turn or len(passed_over) + 1 >= 1 / OVERDUE_SHARE
        return oldest if turn else min(in_time, key=lambda each: each.order)

    def admitted(self, known: Known, num_tokens: int) -> None:
        """`num_tokens`: that its prefill computes. A prompt counts once, however often it is computed, and that of a
        continued request only for its tenant: for its class it counted elsewhere."""
        name = known.request.scheduling.service_class
        if known.state is RequestState.WAITING:
            if self.is_late(known):
                self._passed_over[name] = []
                self.num_late += 1
            elif any(map(self.is_late, self.waiting[name].values())):
                self._passed_over[name].append(known.request.num_prompt_tokens)
        num_counted = 0 if known.num_preemptions else num_tokens
        for shares, client in self._accounts(known):
            shares.admitted(client, 0 if known.continued and shares is self._classes else num_counted)

    def decode_starts(self, known: Known) -> None:
        known.decoding = True
        for shares, client in self._accounts(known):
            shares.decode_starts(client)

    def decode_ends(self, known: Known) -> None:
        known.decoding = False
        for shares, client in self._accounts(known):
            shares.decode_ends(client)

    def generated(self, known: Known, count: int = 1) -> None:
        for shares, client in self._accounts(known):
            shares.generated(client, count)

    def _accounts(self, known: Known) -> list[tuple[FairShare, str]]:
        name = known.request.scheduling.service_class
        # A class that is alone is always next.
        accounts = [(self._classes, name)] if len(self.waiting) > 1 else []
        if self._tenants:
            accounts.append((self._tenants[name], known.request.scheduling.tenant))
        return accounts

    def _tenant_waits(self, request: Request) -> bool:
        queue = self.waiting[request.scheduling.service_class]
        return any(each.request.scheduling.tenant == request.scheduling.tenant for each in queue.values())

    def _key(self, known: Known) -> tuple[float, int]:
        """The smallest in its class is next; of equals the first that arrived."""
        request = known.request
        match self.config.policy:
            case "fcfs":
                return 0, known.order
            case "sjf":
                return request.predicted_output_tokens, known.order
            case "priority":
                # A step of priority is worth `priority_aging` seconds of waiting. So whoever overtakes a request
                # arrived less than (difference of priorities) x `priority_aging` after it: that bounds its wait.
                return request.arrival_time + request.scheduling.priority * self.config.priority_aging, known.order
        raise ValueError(self.config.policy)

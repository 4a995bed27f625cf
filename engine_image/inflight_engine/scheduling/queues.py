"""Requests without a slot, and which of them is next."""

from __future__ import annotations

import math

from inflight_engine.request import Request, RequestState
from inflight_engine.scheduling.class_queue import ClassQueue
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.policies import POLICIES
from inflight_policies.service_counter import OUTPUT_TOKEN, ServiceCounters, unit_of_weight


class WaitingQueues:
    """A queue for each service class (`ClassQueue`), in the order of the policy.

    Among classes with requests waiting, new or resumed, the one with the least service divided by its weight is next
    (`ServiceCounters`; of equal ones the first in the configuration): no class starves, and among classes that always
    have requests waiting shares of tokens follow the weights.

    If the head does not fit, others (`beside`) start before it where `Admission` says so.

    A prompt token counts once, when it is first admitted, and an output token when it is generated (the one that a
    prefill samples: when that is admitted). Tokens recomputed after a preemption are not charged: the preemption was
    the scheduler's choice, and brings the client no new token. Nor are the tokens that a continued request brings
    along charged to its class, if it resumes: they were charged where they were generated. Its tenant is charged for
    those that its prefill computes, since it goes before the new requests of other tenants.

    Raises:
        ValueError: there is no class, or two of one name, or a weight is not a number above 0.

    Attributes:
        by_class: the queue of each class.
        num_tokens: tokens of all waiting requests that are still to be computed.
        ranks_running: `standing` can differ between two requests.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        if not config.classes:
            raise ValueError("there must be at least one service class")
        self._weights = {each.name: each.weight for each in config.classes}
        if len(self._weights) < len(config.classes):
            raise ValueError("two service classes have the same name: give each its own")
        _check_weights(self._weights)
        self.by_class = {name: ClassQueue(POLICIES[config.policy](config)) for name in self._weights}
        self._ranks = {name: rank for rank, name in enumerate(self._weights)}
        # A class that is alone is always next: nothing to count.
        self._counters = ServiceCounters(_units(self._weights)) if len(self._weights) > 1 else None
        self._only = next(iter(self.by_class.values())) if self._counters is None else None
        self._by_priority = next(iter(self.by_class.values())).policy.orders_by_priority
        self.ranks_running = self._by_priority or len(self._weights) > 1
        self.num_tokens = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def weights(self) -> dict[str, float]:
        """Weights of all classes, now in force."""
        return dict(self._weights)

    def set_weights(self, weights: dict[str, float], clock: int) -> None:
        """Change the weights of some classes. What was served before keeps counting as it did.

        Raises:
            ValueError: no such class, or a weight that is not a number above 0. Nothing is changed.
        """
        unknown = weights.keys() - self._weights.keys()
        if unknown:
            raise ValueError(f"no service class {', '.join(sorted(unknown))}: there are {', '.join(self._weights)}")
        _check_weights(weights)
        self._weights.update(weights)
        if self._counters is not None:
            for name, unit in _units(weights).items():
                self._counters.set_unit(name, unit, clock)

    def push(self, request: Request, clock: int) -> None:
        """Take in a request: a new one, or one that is PREEMPTED (a continued one too).

        Raises:
            ValueError: its class does not exist.
        """
        name = request.scheduling.service_class
        queue = self.by_class.get(name)
        if queue is None:
            raise ValueError(f"class must be one of {', '.join(self.by_class)}, not {name!r}")
        if self._counters is not None and len(queue) == 0:
            self._counters.start_waiting(name, self._ranks[name], clock)
        queue.push(request, clock)
        self.num_tokens += request.num_tokens
        self._size += 1

    def weight_ratio(self, service_class: str, other: str) -> float:
        """Return how many times the weight of another class a class has."""
        return self._weights[service_class] / self._weights[other]

    def standing(self, request: Request) -> tuple[float, int]:
        """Return a running request's rank when KV blocks run out, smaller is higher: the weight of its class, then its
        priority where the policy orders by it."""
        return -self._weights[request.scheduling.service_class], request.scheduling.priority if self._by_priority else 0

    def pass_time(self, now: float) -> bool:
        """Set the time, which never goes back; before `head` and `pop`. True: it makes a difference."""
        changed = False
        for queue in self.by_class.values():
            changed |= queue.policy.pass_time(now)
        return changed

    def head(self, clock: int) -> Request | None:
        """Return the next request to be admitted, left in place; None when none waits. It may change as decodes go on,
        and where `pass_time` said so."""
        queue = self._next_queue(clock)
        return None if queue is None else queue.head(clock)

    def pop(self, clock: int) -> Request:
        """Take out what `head` returns at this clock.

        Raises:
            IndexError: none waits.
        """
        request = self.head(clock)
        if request is None:
            raise IndexError("no request waits")
        self.take(request)
        return request

    def take(self, request: Request) -> None:
        """Take out a request that is admitted: the head, or one `beside` it.

        Raises:
            KeyError: it does not wait.
        """
        queue = self.by_class[request.scheduling.service_class]
        queue.take(request)
        self._left(request, queue)

    def beside(self, head: Request, clock: int) -> tuple[list[Request], float]:
        """Return the requests that may start before the head while that does not fit: of each class the first ones, in
        the order of the policy; the class that would be next comes first. And a clock up to which these and the head
        are the same, while `pass_time` returns False and nothing else is called."""
        names, until, found = list(self.by_class), math.inf, []
        if self._counters is not None:
            names, until = self._counters.firsts(len(names), clock)
        for name in names:
            firsts, stay_until = self.by_class[name].firsts(clock)
            until = min(until, stay_until)
            if firsts[0] is not head and firsts[0].state is not RequestState.WAITING:
                firsts = firsts[:1]  # One that resumes is passed where it is the head, or not at all.
            found += [request for request in firsts if request is not head]
        return found, until

    @property
    def order_stays(self) -> bool:
        """The order of waiting requests is the same at every clock and time while none comes or goes."""
        return self._only is not None and self._only.policy.head_stays

    def remove(self, request: Request) -> None:
        """Take out a request that ended while it waited.

        Raises:
            KeyError: it does not wait.
        """
        queue = self.by_class[request.scheduling.service_class]
        queue.remove(request)
        self._left(request, queue)

    def admitted(self, request: Request, num_tokens: int, clock: int) -> None:
        """A request got a slot, right after it was popped, and its prefill computes this many tokens."""
        num_counted = 0 if request.num_preemptions else num_tokens
        if self._counters is not None:
            resumes = request.state is RequestState.PREEMPTED
            self._counters.admitted(request.scheduling.service_class, 0 if resumes else num_counted, clock)
        self.by_class[request.scheduling.service_class].policy.admitted(request, num_counted, clock)

    def decode_started(self, request: Request, clock: int) -> None:
        """A request generates a token for each count of the clock from now on."""
        if self._counters is not None:
            self._counters.decode_started(request.scheduling.service_class, clock)
        self.by_class[request.scheduling.service_class].policy.decode_started(request, clock)

    def decode_ended(self, request: Request, clock: int) -> None:
        """A request generates no more: it ended, lost its slot or pauses. Only after a `decode_started`."""
        if self._counters is not None:
            self._counters.decode_ended(request.scheduling.service_class, clock)
        self.by_class[request.scheduling.service_class].policy.decode_ended(request, clock)

    def generated(self, request: Request, num_tokens: int, clock: int) -> None:
        """A request that does not decode now gets this many output tokens at once."""
        service = OUTPUT_TOKEN * num_tokens
        if self._counters is not None:
            self._counters.charge(request.scheduling.service_class, service, clock)
        self.by_class[request.scheduling.service_class].policy.generated(request, service, clock)

    def _next_queue(self, clock: int) -> ClassQueue | None:
        if self._counters is None:
            return self._only
        name = self._counters.least(clock)
        return None if name is None else self.by_class[name]

    def _left(self, request: Request, queue: ClassQueue) -> None:
        self.num_tokens -= request.num_tokens
        self._size -= 1
        if self._counters is not None and len(queue) == 0:
            self._counters.stop_waiting(request.scheduling.service_class)


def _check_weights(weights: dict[str, float]) -> None:
    for name, weight in weights.items():
        if not 0 < weight < math.inf:
            raise ValueError(f"the weight of class {name} must be a number above 0, not {weight}")


def _units(weights: dict[str, float]) -> dict[str, int]:
    return {name: unit_of_weight(weight) for name, weight in weights.items()}

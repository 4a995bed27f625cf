"""The interface of policies: order of the waiting requests of one service class."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Protocol

from inflight_engine.request import Request
from inflight_policies.lazy_heap import LazyHeap
from inflight_settings.scheduling import SchedulingSettings


class Policy(Protocol):
    """Orders the waiting requests of one class.

    Where the head does not fit, no request that waits here but the next few (`firsts`) may start before it, and only
    when the scheduler says (`Admission`). Requests that resume wait here only where the policy orders by priority, else
    ahead of the head (`ClassQueue`). `clock` counts the steps that were computed, and never goes back; every decoding
    request generates one token for each count, so a policy that accounts for tokens needs to hear only of changes.
    `now` are seconds on the clock of `Request.arrival_time`. The last five methods do nothing unless a policy needs
    them.

    Every operation should cost O(log n) of the requests that wait.

    Attributes:
        orders_by_priority: a smaller `Request.priority` goes first. So requests that resume wait here too, and the
            largest is preempted first.
        head_stays: `head` and `firsts` are the same at every clock while no request comes or goes.
        num_late_tokens: prompt tokens of waiting requests that one which comes now would overtake.
    """

    orders_by_priority: ClassVar[bool] = False
    head_stays: ClassVar[bool] = False
    num_late_tokens: int = 0

    def __len__(self) -> int:
        """Requests that wait."""

    def push(self, request: Request, clock: int) -> None:
        """A new request, whose `order` is larger than that of all before it, or one that resumes."""

    def head(self, clock: int) -> Request | None:
        """The next to be admitted, left in place; None when none waits. It may become another as decodes go on or time
        passes."""

    def firsts(self, count: int, clock: int) -> tuple[list[Request], float]:
        """The head and those that may start before it while it does not fit, in order, left in place; at most `count`.
        And a clock up to which they are the same, while `pass_time` returns False and nothing else is called."""

    def pop(self, clock: int) -> Request:
        """Take out what `head` returns at this clock.

        Raises:
            IndexError: none waits.
        """
        request = self.head(clock)
        if request is None:
            raise IndexError("no request waits")
        self.picked(request)
        return request

    def picked(self, request: Request) -> None:
        """Take out a request that is admitted."""
        self.remove(request)

    def remove(self, request: Request) -> None:
        """Take out a request that ended while it waited.

        Raises:
            KeyError: it does not wait here.
        """

    def pass_time(self, now: float) -> bool:
        """It is `now`, which never goes back. Called before `head` is asked for; True: some request waits otherwise
        than before, so the head may be another."""
        return False

    def admitted(self, request: Request, num_tokens: int, clock: int) -> None:
        """A request got a slot, right after it was popped; its prefill computes this many tokens of its prompt that
        were not counted before, and samples one. Also called, with 0, when it resumes after a preemption."""

    def decode_started(self, request: Request, clock: int) -> None:
        """From now on it generates a token for each count of the clock."""

    def decode_ended(self, request: Request, clock: int) -> None:
        """It no longer does: it ended, lost its slot or pauses. Only after a `decode_started`."""

    def generated(self, request: Request, service: int, clock: int) -> None:
        """It gets output tokens at once, though it does not decode now. `service`: theirs, see `ServiceCounters`."""


class StaticKeyPolicy(Policy):
    """A policy whose order rests on one number for each request, which never changes while it waits.

    A subclass says what the number is.
    """

    head_stays = True

    def __init__(self, config: SchedulingSettings) -> None:
        self.config = config
        self._heap: LazyHeap[Request] = LazyHeap()

    @abstractmethod
    def key(self, request: Request) -> float:
        """Smaller goes first; of equal ones the first to arrive."""

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, request: Request, clock: int) -> None:
        self._heap.push(request, (self.key(request), request.order))

    def head(self, clock: int) -> Request | None:
        first = self._heap.first()
        return None if first is None else first[1]

    def firsts(self, count: int, clock: int) -> tuple[list[Request], float]:
        return [request for _, request in self._heap.firsts(count)], math.inf

    def remove(self, request: Request) -> None:
        self._heap.remove(request)

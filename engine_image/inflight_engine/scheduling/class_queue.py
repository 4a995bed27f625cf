"""The requests of one service class that wait."""

from __future__ import annotations

from inflight_engine.request import Request, RequestState
from inflight_engine.scheduling.policies.base import Policy
from inflight_policies.lazy_heap import LazyHeap

NUM_BEHIND = 4
"""Requests of a class that are tried where its first does not fit."""


class ClassQueue:
    """Requests that lost their slot go first, by arrival: they hold tokens that a client is reading, and a new request
    in their place would only be the next to be preempted. So do continued requests, whose clients read too. New ones
    follow in the order of the policy. Where the first does not fit, some others may start before it (`firsts`); when
    they may, `Admission` says.

    A policy that orders by priority gets both, so that a preempted request never resumes before one of higher priority
    that waits. Of equal priority the preempted one is ahead: it was admitted first, so it arrived first.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._resumed: LazyHeap[Request] = LazyHeap()

    def __len__(self) -> int:
        return len(self.policy) + len(self._resumed)

    def push(self, request: Request, clock: int) -> None:
        """Take in a request: a new one, or one that is PREEMPTED."""
        if request.state is RequestState.WAITING or self.policy.orders_by_priority:
            self.policy.push(request, clock)
        else:
            self._resumed.push(request, (request.order,))

    def head(self, clock: int) -> Request | None:
        """Return the next request to be admitted, left in place; None when none waits."""
        resumed = self._resumed.first()
        return self.policy.head(clock) if resumed is None else resumed[1]

    def firsts(self, clock: int) -> tuple[list[Request], float]:
        """Return the requests that may be tried while others do not fit: `head`, and up to `NUM_BEHIND` behind it.
        Behind one that resumes before all new ones that is the first new one; behind one that resumes by its priority
        there is none. And a clock up to which they are the same, as of `Policy.firsts`."""
        resumed = self._resumed.first()
        found, until = self.policy.firsts(1 + NUM_BEHIND if resumed is None else 1, clock)
        if resumed is not None:
            return [resumed[1], *found], until
        return found[:1] if found and found[0].state is not RequestState.WAITING else found, until

    def take(self, request: Request) -> None:
        """Take out a request that is admitted.

        Raises:
            KeyError: it does not wait here.
        """
        if request in self._resumed:
            self._resumed.remove(request)
        else:
            self.policy.picked(request)

    def remove(self, request: Request) -> None:
        """Take out a request that ended while it waited.

        Raises:
            KeyError: it does not wait here.
        """
        if request in self._resumed:
            self._resumed.remove(request)
        else:
            self.policy.remove(request)

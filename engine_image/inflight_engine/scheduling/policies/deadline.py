"""The oldest request that can still keep its TTFT target."""

from __future__ import annotations

from math import inf

from inflight_engine.request import Request
from inflight_engine.scheduling.policies.base import Policy, PolicySettings
from inflight_engine.scheduling.policies.lazy_heap import LazyHeap


class Deadline(Policy):
    """By arrival among the requests that can still keep their TTFT target, which is until `Request.latest_start`.

    A request that is past it is late, and stays late. One pick in 1 / `late_share` goes to the oldest late request, and
    every pick does while no other request waits. Requests without a target are never late, so without any target the
    order is that of `fcfs`.

    Nothing starves: of any 1 / `late_share` picks (rounded down) in a row that are made while late requests wait, one
    takes the oldest of them. So when a request becomes late while k older ones wait, it is admitted within k + 1 times
    as many picks.

    Raises:
        ValueError: `late_share` is not above 0 and at most 1.
    """

    def __init__(self, config: PolicySettings) -> None:
        if not 0 < config.late_share <= 1:
            raise ValueError(f"late_share must be above 0 and at most 1, not {config.late_share}")
        self._most_passed_over = int(1 / config.late_share) - 1
        self._passed_over = 0
        """Picks since the last one of a late request that were made while late ones waited."""
        self._in_time: LazyHeap[Request] = LazyHeap()
        self._by_latest_start: LazyHeap[Request] = LazyHeap()
        """Of those in time, the ones that have a target."""
        self._late: LazyHeap[Request] = LazyHeap()
        self.num_late_tokens = 0

    def __len__(self) -> int:
        return len(self._in_time) + len(self._late)

    def push(self, request: Request, clock: int) -> None:
        self._in_time.push(request, (request.order,))
        if request.latest_start < inf:
            self._by_latest_start.push(request, (request.latest_start, request.order))

    def pass_time(self, now: float) -> bool:
        any_late = False
        while (first := self._by_latest_start.first()) is not None and first[0][0] < now:
            request = first[1]
            self._take_out(request)
            self._late.push(request, (request.order,))
            self.num_late_tokens += request.num_prompt_tokens
            any_late = True
        return any_late

    def head(self, clock: int) -> Request | None:
        late, in_time = self._late.first(), self._in_time.first()
        if late is not None and (in_time is None or self._passed_over >= self._most_passed_over):
            return late[1]
        return None if in_time is None else in_time[1]

    def pop(self, clock: int) -> Request:
        request = self.head(clock)
        if request is None:
            raise IndexError("no request waits")
        if request in self._late:
            self._passed_over = 0
        elif self._late:
            self._passed_over += 1
        self.remove(request)
        return request

    def remove(self, request: Request) -> None:
        if request in self._late:
            self._late.remove(request)
            self.num_late_tokens -= request.num_prompt_tokens
        else:
            self._take_out(request)

    def _take_out(self, request: Request) -> None:
        """Of those in time."""
        self._in_time.remove(request)
        if request in self._by_latest_start:
            self._by_latest_start.remove(request)

"""The queue of vLLM's waiting requests, in the order of Inflight's engine: late requests let others pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol
from weakref import WeakKeyDictionary

from inflight_policies.deadline import DeadlineQueue

_OVERDUE_S = 30.0
"""Seconds after its deadline from which a late request gets a share of the picks: half of the longest wait in
Inflight's engine, where vLLM has none."""

_LEAST_DEADLINE_MS = 10**12
"""A smaller priority is no deadline: vLLM has paths whose requests the plugin does not change."""


class WaitingRequest(Protocol):
    """The part of vLLM's `Request` that is read. Attributes: priority: its deadline, in milliseconds since 1970."""

    priority: int
    num_prompt_tokens: int
    num_preemptions: int


class DeadlineRequestQueue:
    """Takes the place of vLLM's `PriorityRequestQueue`: a `RequestQueue` with the order of `DeadlineQueue`.

    A preempted request keeps its deadline, and is not late: it was started in time or in its turn, and its stream may
    have begun. Nor is one without a deadline; it goes first, as with vLLM's queue. vLLM takes requests that cannot
    start yet out of the queue, and puts them back at the end of the step; for the share of late requests they count as
    picked.

    Args:
        latest_start: of a request that comes, Unix time.
        clock: Unix time.
    """

    def __init__(self, latest_start: Callable[[WaitingRequest], float], clock: Callable[[], float]) -> None:
        self._queue: DeadlineQueue[WaitingRequest] = DeadlineQueue(lambda each: max(1, each.num_prompt_tokens))
        self._latest_start = latest_start
        self._clock = clock
        self._numbers = itertools.count()
        self._came: WeakKeyDictionary[WaitingRequest, tuple[int, float]] = WeakKeyDictionary()
        """Numbers and latest starts of requests, as they were when these came."""
        self._head: WaitingRequest | None = None
        """The request that vLLM looked at, and takes out next."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._queue.firsts(len(self._queue)))

    def add_request(self, request: WaitingRequest) -> None:
        """Put a request in, at its own place; one that is here already stays once."""
        self.remove_request(request)
        if request not in self._came:
            has_deadline = request.priority >= _LEAST_DEADLINE_MS
            latest_start = self._latest_start(request) if has_deadline else float("inf")
            self._came[request] = next(self._numbers), latest_start
        number, latest_start = self._came[request]
        if request.num_preemptions:
            latest_start = float("inf")
        self._queue.push(request, request.priority / 1000, number, latest_start)

    prepend_request = add_request

    def prepend_requests(self, requests: Iterable[WaitingRequest]) -> None:
        """Put requests in, at their own places."""
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> WaitingRequest:
        """Return the first request.

        Raises:
            IndexError: no request waits.
        """
        now = self._clock()
        self._queue.pass_time(now, now - _OVERDUE_S)
        self._head = self._queue.head()
        if self._head is None:
            raise IndexError("no request waits")
        return self._head

    def pop_request(self) -> WaitingRequest:
        """Take out the request that was looked at last, else the first one.

        Raises:
            IndexError: no request waits.
        """
        request = self._head or self.peek_request()
        self._queue.pick(request)
        self._head = None
        return request

    def remove_request(self, request: WaitingRequest) -> None:
        """Take out a request, if it is here."""
        with suppress(KeyError):
            self._queue.remove(request)
        self._head = None

    def remove_requests(self, requests: Iterable[WaitingRequest]) -> None:
        """Take out those of these requests that are here."""
        for request in requests:
            self.remove_request(request)

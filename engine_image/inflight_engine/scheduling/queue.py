"""The waiting queue: first come, first served, with cancellation that costs no scan."""

from __future__ import annotations

import heapq

from inflight_engine.request import Request


class WaitingQueue:
    """Requests without a slot, ordered by when they first came.

    A preempted request keeps its place in that order, so it comes before everything that arrived after it.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, Request]] = []
        self._members: set[int] = set()

    def __len__(self) -> int:
        return len(self._members)

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.order, request))
        self._members.add(request.request_id)

    def head(self) -> Request | None:
        """The next request to admit, left in place."""
        while self._heap and self._heap[0][1].request_id not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        """Take the head out. There must be one."""
        request = self.head()
        if request is None:
            raise IndexError("the waiting queue is empty")
        heapq.heappop(self._heap)
        self._members.remove(request.request_id)
        return request

    def remove(self, request: Request) -> None:
        """Take a request out for good, wherever it stands; its heap entry is dropped when it surfaces."""
        self._members.remove(request.request_id)

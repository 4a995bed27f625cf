"""Priority with aging."""

from __future__ import annotations

from inflight_engine.request import Request
from inflight_engine.scheduling.policies.base import StaticKeyPolicy


class Priority(StaticKeyPolicy):
    """The smallest priority number first, where `priority_aging` seconds of waiting count as one step of priority.

    All that wait age at the same pace, so which of two is ahead never changes, and the number can be fixed at arrival:
    a request of priority p stands where one of priority 0 would that arrived p x `priority_aging` seconds later.

    Nothing starves: a request of priority p is overtaken only by requests that arrive less than
    (p - p_min) x `priority_aging` seconds after it, p_min being the smallest number in use. The server bounds the
    numbers, and so the wait.

    A preempted request waits at the same place.
    """

    orders_by_priority = True

    def key(self, request: Request) -> float:
        return request.arrival_time + request.priority * self.config.priority_aging

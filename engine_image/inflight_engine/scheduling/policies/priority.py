"""Priority with aging."""

from __future__ import annotations

from inflight_engine.request import Request
from inflight_engine.scheduling.policies.base import StaticKeyPolicy
from inflight_policies.priority import aged


class Priority(StaticKeyPolicy):
    """The smallest priority number first, where `priority_aging` seconds of waiting count as one step of priority
    (`inflight_policies.priority`). A preempted request waits at the same place."""

    orders_by_priority = True

    def key(self, request: Request) -> float:
        return aged(request.arrival_time, request.scheduling.priority, self.config.priority_aging)

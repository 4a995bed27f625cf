"""First come, first served."""

from __future__ import annotations

from inflight_engine.request import Request
from inflight_engine.scheduling.policies.base import StaticKeyPolicy


class Fcfs(StaticKeyPolicy):
    """By arrival. Nothing starves: a request waits only for those that came before it."""

    def key(self, request: Request) -> float:
        return request.order

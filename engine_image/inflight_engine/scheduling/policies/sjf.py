"""Shortest job first."""

from __future__ import annotations

from inflight_engine.request import Request
from inflight_engine.scheduling.policies.base import StaticKeyPolicy


class ShortestJobFirst(StaticKeyPolicy):
    """By predicted output tokens; of equal ones the first to arrive.

    The mean wait is the shortest there is where predictions hold, but long requests can starve: as long as enough
    shorter ones keep arriving, they wait. What bounds it is the server's queue timeout, which ends them.
    """

    def key(self, request: Request) -> float:
        return request.predicted_output_tokens

"""Runs requests through a fleet of replicas on one clock."""

from __future__ import annotations

from collections.abc import Callable

from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.view import Scaler

Progress = Callable[[float], None]


def simulate_fleet(
    requests: Requests, config: FleetConfig, scaler: Scaler, progress: Progress | None = None
) -> FleetRun:
    """All requests from their arrival to their end; the clock stops with the last one's end.

    Args:
        progress: called now and then with the share of requests that have arrived.
    """
    raise NotImplementedError

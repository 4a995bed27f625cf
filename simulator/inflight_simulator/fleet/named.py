"""Runs a scaler by its name on the command line."""

from __future__ import annotations

from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.oracle_search import search_oracle
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import simulate_fleet
from inflight_simulator.fleet.scalers import make_scaler

ORACLE = "oracle"


def run_named(name: str, requests: Requests, config: FleetConfig) -> FleetRun:
    """
    Raises:
        InputError: there is no scaler of this name.
    """
    if name == ORACLE:
        return search_oracle(requests, config).run
    return simulate_fleet(requests, config, make_scaler(name, config))

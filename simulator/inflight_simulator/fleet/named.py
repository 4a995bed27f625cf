"""Runs a fleet under a scaler that is given by its name."""

from __future__ import annotations

from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.oracle_search import search_oracle
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import Progress, simulate_fleet
from inflight_simulator.fleet.scalers import NAMES as SCALERS
from inflight_simulator.fleet.scalers import make_scaler

ORACLE = "oracle"
SPECIAL = (ORACLE,)
"""Those that are no `Scaler` of their own."""
NAMES = (*SCALERS, *SPECIAL)


def simulate_named(name: str, requests: Requests, config: FleetConfig, progress: Progress | None = None) -> FleetRun:
    """`simulate_fleet` with the scaler of that name. The oracle is simulated several times, until its margin is found.

    Raises:
        InputError: there is none.
    """
    if name == ORACLE:
        return search_oracle(requests, config, progress=progress).run
    return simulate_fleet(requests, config, make_scaler(name, config), progress)


def check_name(name: str, config: FleetConfig) -> None:
    """
    Raises:
        InputError: there is no scaler of this name.
    """
    if name not in SPECIAL:
        make_scaler(name, config)

"""Runs a fleet under a scaler that is given by its name."""

from __future__ import annotations

from dataclasses import replace

from inflight_simulator.fleet.autopilot import Autopilot
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.control import ScalerController
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.run import Controller, Progress, run_fleet, simulate_fleet
from inflight_simulator.fleet.scalers import NAMES as SCALERS
from inflight_simulator.fleet.scalers import make_scaler
from inflight_simulator.fleet.scalers.oracle import search_oracle
from inflight_simulator.fleet.view import Fixed, Scaler

AUTOPILOT, ORACLE = "autopilot", "oracle"
SPECIAL = (AUTOPILOT, ORACLE)
"""Names that stand for no `Scaler`."""
NAMES = (*SCALERS, *SPECIAL)


def simulate_named(name: str, requests: Requests, config: FleetConfig, progress: Progress | None = None) -> FleetRun:
    """Runs `simulate_fleet` with the scaler of that name. The oracle is simulated several times, to find its schedule.

    Raises:
        InputError: there is none.
    """
    if name == ORACLE:
        return search_oracle(requests, config, lambda scaler: _simulate(requests, config, scaler, progress))
    if name == AUTOPILOT:
        return _with_operator(requests, config, None, progress)
    return _simulate(requests, config, make_scaler(name, config), progress)


def _simulate(requests: Requests, config: FleetConfig, scaler: Scaler, progress: Progress | None) -> FleetRun:
    """Simulates under a scaler, and under the operator's tuning if that is on."""
    if config.tuning:
        return _with_operator(requests, config, scaler, progress)
    return simulate_fleet(requests, config, scaler, progress)


def _with_operator(
    requests: Requests, config: FleetConfig, scaler: Scaler | None, progress: Progress | None
) -> FleetRun:
    """Simulates with the operator's rounds, which order replicas unless there is a scaler."""
    if isinstance(scaler, Fixed):
        config = replace(config, initial_replicas=scaler.count)
    operator = Autopilot(config, scales=scaler is None)
    controllers: list[Controller] = [operator]
    if scaler is not None and not isinstance(scaler, Fixed):
        controllers.append(ScalerController(scaler))
    return replace(run_fleet(requests, config, controllers, progress), decisions=tuple(operator.decisions))

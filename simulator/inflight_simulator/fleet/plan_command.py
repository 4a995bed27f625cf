"""`inflight-simulate plan`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import msgspec

from inflight_engine.flag_types import number
from inflight_engine.scheduling.policies import POLICIES
from inflight_simulator.errors import InputError
from inflight_simulator.fleet.config import ROUTINGS, FleetConfig, ReplicaModel
from inflight_simulator.fleet.flags import add_arrivals, add_target_flags, request_targets
from inflight_simulator.fleet.plan import plan
from inflight_simulator.fleet.plan_report import plan_text
from inflight_simulator.fleet.replica_file import FORMAT, read_replica
from inflight_simulator.fleet.requests_file import read_requests
from inflight_simulator.trace_files import FORMATS

REFERENCE = "reference"
_DEFAULTS = FleetConfig()
_MOST_REPLICAS = 1000

EPILOG = f"""\
For each replica file: limits by the cost model (or the same with a larger token budget, where that keeps more requests
in target in a simulation), replicas by the capacity model, and the smallest number of fixed replicas that keeps the
targets in a simulation, with its cost. Then the first bottleneck as the load grows, and the attainment of these
replicas at twice the load. Each file takes 4 to 12 simulations of ARRIVALS.

Without --replica: the reference replica of `inflight-simulate fleet`. Examples from data sheets, not measured, are in
simulator/examples/replicas. `inflight-simulate calibrate` measures the cost model of an engine of your own.

{FORMATS}

{FORMAT}

example:
  inflight-simulate plan ARRIVALS --replica simulator/examples/replicas/llama-3-8b-h100.json \\
    --replica simulator/examples/replicas/llama-3-8b-l40s.json --ttft 500ms --tpot 50ms"""


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    add_arrivals(parser)
    parser.add_argument(
        "--replica",
        type=Path,
        metavar="FILE",
        action="append",
        help="JSON file that describes a replica; repeat it to compare several",
    )
    parser.add_argument(
        "--price",
        type=number(float, 0, 1e9),
        metavar="P",
        help="price of a replica-hour; overrides the prices in the files",
    )
    parser.add_argument(
        "--attainment",
        type=number(float, 0.01, 1.0),
        default=0.99,
        metavar="SHARE",
        help="share of requests that must keep their targets (default 0.99)",
    )
    parser.add_argument(
        "--max-replicas",
        type=number(int, 1, 100_000),
        default=_MOST_REPLICAS,
        metavar="N",
        help="largest number of replicas to try (default %(default)s)",
    )
    parser.add_argument(
        "--routing", choices=ROUTINGS, default=_DEFAULTS.routing, help="as in `fleet` (default %(default)s)"
    )
    parser.add_argument(
        "--policy", choices=tuple(POLICIES), default=_DEFAULTS.policy, help="order of waiting requests (default fcfs)"
    )
    parser.add_argument("--seed", type=number(int, 0), default=0, metavar="N", help="of the steps' noise (default 0)")
    add_target_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of sentences")


def run_plan(flags: argparse.Namespace) -> int:
    """Raises InputError. Status 1: none of the replicas keeps the targets."""
    models = _models(flags.replica or [], flags.price)
    config = FleetConfig(
        routing=flags.routing,
        max_replicas=flags.max_replicas,
        policy=flags.policy,
        targets=request_targets(flags),
        seed=flags.seed,
    )
    found = plan(read_requests(flags.arrivals), models, config, flags.attainment)
    print(msgspec.json.encode(found).decode() if flags.json else plan_text(found, config.targets))
    return 0 if any(each.checked is not None for each in found.replicas) else 1


def _models(paths: list[Path], price: float | None) -> dict[str, ReplicaModel]:
    """By file name without its ending.

    Raises:
        InputError: two files have one name, or a file is none.
    """
    models = {path.stem: read_replica(path) for path in paths} if paths else {REFERENCE: ReplicaModel()}
    if paths and len(models) < len(paths):
        raise InputError("two files of --replica have the same name, by which the plan calls them")
    if price is not None:
        models = {name: replace(model, price=price) for name, model in models.items()}
    return models

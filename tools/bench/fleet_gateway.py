"""The cost of the gateway for the autopilot: `python -m tools.bench.fleet_gateway ARRIVALS`.

The same requests under the autopilot, by `--routing least-work`, which sees every replica as it is, and through the
gateway, by the number of its pods: replica-hours and requests in target, means over seeds. Requests that the gateway
refuses are out of target. Flags are those of `inflight-simulate fleet`. Exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inflight_settings.flag_types import number
from inflight_simulator.fleet.commands.flags import add_fleet_flags, fleet_config, read_load
from inflight_simulator.fleet.commands.named import AUTOPILOT, simulate_named
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.report import aligned

MOST_HOURS = 1.03
"""Goal: replica-hours through the gateway, as a multiple of those by `least-work`."""
MOST_MISSED = 0.005
"""Goal: share of requests that are in target by `least-work` and not through the gateway, at most."""


@dataclass(frozen=True, slots=True)
class Row:
    """Means over the seeds. Attributes: refused: share of the requests."""

    name: str
    hours: float
    kept: float
    refused: float


def measure(name: str, requests: Requests, configs: Sequence[FleetConfig]) -> Row:
    """Simulates each configuration; reports each run on standard error."""
    rows = []
    for config in configs:
        run = simulate_named(AUTOPILOT, requests, config)
        rows.append((run.replica_hours, run.attainment, run.refused / len(requests)))
        found = f"{run.replica_hours:.2f} replica-hours, {run.attainment:.2%} in target, {run.refused} refused"
        print(f"{name}, seed {config.seed}: {found}", file=sys.stderr, flush=True)
    return Row(name, *(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.fleet_gateway", description=__doc__.partition("\n")[0], allow_abbrev=False
    )
    add_fleet_flags(parser)
    parser.set_defaults(scaler=AUTOPILOT)
    parser.add_argument(
        "--pods", type=number(int, 1), nargs="+", default=[1, 2, 4], metavar="N", help="gateway pods (default: 1 2 4)"
    )
    parser.add_argument("--seeds", type=number(int, 1), default=3, metavar="N", help="seeds from --seed on (default 3)")
    parser.add_argument(
        "--seconds", type=number(float, 1), metavar="S", help="only requests of the first S seconds (default: all)"
    )
    flags = parser.parse_args()
    config, requests = fleet_config(flags), read_load(flags)
    if flags.seconds is not None:
        requests = requests.first(flags.seconds)
    configs = [replace(config, seed=config.seed + seed) for seed in range(flags.seeds)]
    alone = measure("least-work", requests, [replace(each, routing="least-work") for each in configs])
    rows = [["routing", "replica-hours", "", "in target", "", "refused"]]
    rows.append([alone.name, f"{alone.hours:.2f}", "", f"{alone.kept:.2%}", "", ""])
    good = True
    for pods in flags.pods:
        name = f"gateway, {pods} pod{'s' if pods > 1 else ''}"
        models = [replace(each, routing="gateway", gateway=replace(each.gateway, pods=pods)) for each in configs]
        row = measure(name, requests, models)
        hours, missed = row.hours / alone.hours, alone.kept - row.kept
        good &= hours <= MOST_HOURS and missed <= MOST_MISSED
        percents = [
            f"{hours - 1:+.1%}",
            f"{row.kept:.2%}",
            f"{100 * (row.kept - alone.kept):+.2f} points",
            f"{row.refused:.2%}",
        ]
        rows.append([name, f"{row.hours:.2f}", *percents])
    print("\n".join(aligned(rows)))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""`inflight-simulate fleet-compare`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inflight_engine.flag_types import number
from inflight_simulator.fleet.compare import compare, comparison_table, followed, ranked
from inflight_simulator.fleet.flags import add_fleet_flags, add_json_flag, fleet_config, print_numbers
from inflight_simulator.fleet.named import NAMES, SPECIAL, check_name
from inflight_simulator.fleet.oracle_search import MOST_RUNS
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.replica_file import FORMAT
from inflight_simulator.fleet.requests_file import read_requests
from inflight_simulator.fleet.scalers import COMPARED
from inflight_simulator.fleet.summary import summarize_fleet
from inflight_simulator.trace_files import FORMATS

DEFAULT_SCALERS = (*SPECIAL, *COMPARED)

EPILOG = f"""\
Scalers are {", ".join(NAMES)}.
Each runs with the defaults of its source; docs/simulator.md lists replacements of signals that the simulation lacks.
The table has those first that keep 99% of the requests in target, the cheapest first, and then the others, the best
first. The oracle knows what will come, and is simulated up to {MOST_RUNS} times to find its schedule.

{FORMATS}

{FORMAT}

examples:
  inflight-simulate fleet-compare ARRIVALS.gz --max-replicas 14 --plot compare.png
  inflight-simulate fleet-compare ARRIVALS --scalers fixed:8,hpa-queue:5,oracle --start-up 10s --json -"""


def add_fleet_compare_flags(parser: argparse.ArgumentParser) -> None:
    add_fleet_flags(parser)
    parser.add_argument(
        "--scalers",
        type=lambda text: tuple(name.strip() for name in text.split(",")),
        default=DEFAULT_SCALERS,
        metavar="A,B,C",
        help=f"autoscalers to compare (default {','.join(DEFAULT_SCALERS)})",
    )
    parser.add_argument(
        "--processes", type=number(int, 1, 1024), default=1, metavar="N", help="simulations to run at once (default 1)"
    )
    output = parser.add_argument_group("what to print")
    add_json_flag(output)
    output.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw replica-hours against the share in target, and some replicas",
    )


def run_fleet_compare(flags: argparse.Namespace) -> int:
    """Raises InputError, and OSError where a file cannot be written."""
    config = fleet_config(flags)
    names = list(dict.fromkeys(flags.scalers))
    for name in names:
        check_name(name, config)
    requests = read_requests(flags.arrivals)
    done = 0

    def finished(name: str, run: FleetRun) -> None:
        nonlocal done
        done += 1
        numbers = f"{run.attainment:.2%} in target, {run.replica_hours:.2f} replica-hours"
        print(f"{done} of {len(names)}: {name}: {numbers}", file=sys.stderr, flush=True)

    runs = compare(names, requests, config, flags.processes, finished)
    summaries = {name: summarize_fleet(name, requests, config, run) for name, run in runs.items()}
    if flags.plot is not None:
        # Imported on demand: the import takes longer than many simulations.
        from inflight_simulator.fleet.plot import plot_comparison

        plot_comparison(flags.plot, runs, followed(summaries))
    in_order = [summaries[name] for name in ranked(summaries)]
    print_numbers(flags, in_order, lambda: comparison_table(summaries))
    return 0

"""`inflight-simulate fleet-compare`: all scalers on the same requests."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from inflight_settings.flag_types import number
from inflight_simulator.fleet.commands.flags import (
    add_fleet_flags,
    add_json_flag,
    fleet_config,
    print_numbers,
    read_load,
)
from inflight_simulator.fleet.commands.named import NAMES, SPECIAL, simulate_named
from inflight_simulator.fleet.commands.replica_file import FORMAT
from inflight_simulator.fleet.commands.summary import FleetSummary, summarize_fleet
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.outcome import FleetRun
from inflight_simulator.fleet.requests import Requests
from inflight_simulator.fleet.scalers import COMPARED, make_scaler
from inflight_simulator.fleet.scalers.oracle import MOST_RUNS
from inflight_simulator.report import aligned
from inflight_simulator.summary import Distribution
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
        if name not in SPECIAL:
            make_scaler(name, config)  # an unknown name is reported before the first simulation
    requests = read_load(flags)
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
        from inflight_simulator.fleet.commands.plot import plot_comparison

        plot_comparison(flags.plot, runs, followed(summaries))
    in_order = [summaries[name] for name in ranked(summaries)]
    print_numbers(flags, in_order, lambda: comparison_table(summaries))
    return 0


KEPT = 0.99
"""Share of requests in target from which scalers are compared by replica-hours."""

Finished = Callable[[str, FleetRun], None]


def compare(
    names: Sequence[str], requests: Requests, config: FleetConfig, processes: int = 1, finished: Finished | None = None
) -> dict[str, FleetRun]:
    """Each scaler's run, in the order of `names`.

    Args:
        processes: that simulate at the same time.
        finished: called with each run as it ends.
    """
    runs: dict[str, FleetRun] = {}
    for name, run in _runs(names, requests, config, processes):
        runs[name] = run
        if finished is not None:
            finished(name, run)
    return {name: runs[name] for name in names}


def _runs(
    names: Sequence[str], requests: Requests, config: FleetConfig, processes: int
) -> Iterable[tuple[str, FleetRun]]:
    if processes == 1:
        yield from ((name, simulate_named(name, requests, config)) for name in names)
        return
    with ProcessPoolExecutor(processes) as pool:
        pending = {pool.submit(simulate_named, name, requests, config): name for name in names}
        yield from ((pending[each], each.result()) for each in as_completed(pending))


def ranked(summaries: Mapping[str, FleetSummary]) -> list[str]:
    """Scalers that meet the targets first, by cost; then the others, by attainment."""

    def rank(name: str) -> tuple[bool, float]:
        summary = summaries[name]
        kept = summary.attainment >= KEPT
        return not kept, summary.replica_hours if kept else -summary.attainment

    return sorted(summaries, key=rank)


def followed(summaries: Mapping[str, FleetSummary]) -> list[str]:
    """The scalers plotted over time: Inflight's own, and the best three others."""
    special = [name for name in summaries if name in SPECIAL]
    return special + [name for name in ranked(summaries) if name not in SPECIAL][:3]


def comparison_table(summaries: Mapping[str, FleetSummary]) -> str:
    """A row for each scaler, `ranked`."""
    header = ["scaler", "in target", "replica-hours", "reversals", "longest out, s"]
    header += ["TTFT p50", "p95", "p99, s", "TPOT p50", "p95", "p99, ms"]
    rows = [header]
    for name in ranked(summaries):
        each = summaries[name]
        numbers = [f"{each.attainment:.2%}", f"{each.replica_hours:.2f}", str(each.reversals)]
        latencies = [*_percentiles(each.ttft, 1.0, 3), *_percentiles(each.tpot, 1e3, 1)]
        rows.append([name, *numbers, f"{each.longest_out_of_target_s:g}", *latencies])
    return "\n".join(aligned(rows))


def _percentiles(of: Distribution, factor: float, digits: int) -> list[str]:
    return ["-" if value is None else f"{factor * value:.{digits}f}" for value in (of.p50, of.p95, of.p99)]

"""`inflight-simulate fleet`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from inflight_simulator.fleet.commands.flags import (
    add_fleet_flags,
    add_json_flag,
    fleet_config,
    print_numbers,
    read_load,
)
from inflight_simulator.fleet.commands.named import NAMES, simulate_named
from inflight_simulator.fleet.commands.replica_file import FORMAT
from inflight_simulator.fleet.commands.summary import FleetSummary, fleet_table, summarize_fleet
from inflight_simulator.trace_files import FORMATS

EPILOG = f"""\
SCALER is one of {", ".join(NAMES)}.

{FORMATS}

{FORMAT}
The reference replica is an 8B model on one H100-class GPU by public arithmetic: a KV cache of 400,000 tokens and steps
of 5.5 ms + 30 us a prompt token + 15 us a decode + 0.045 us a token that decodes attend to + 1.05 ns for each prompt
token and token that it attends to + 2.6 us a token copied to or from host memory, with 3% of noise.

A request keeps its targets if its first token comes within --ttft (prompts over 4,000 tokens: --long-ttft) and its
output tokens within --tpot on average. Replica-hours count pods from their order to their end, starting and draining
ones too, up to the last arrival. Reversals are changes of direction of the ordered replicas. The longest time out of
target is the longest run of 10 s windows in which less than 99% of the arriving requests kept their targets.

examples:
  inflight-simulate fleet ARRIVALS --scaler fixed:8
  inflight-simulate fleet ARRIVALS.gz --scaler autopilot --routing least-work --decisions
  inflight-simulate fleet ARRIVALS --scaler hpa-queue:5 --replica my-gpu.json --json -
  inflight-simulate fleet ARRIVALS --scaler autopilot --routing gateway --gateway-pods 2 --service chat.yaml \\
    --flood acme:50@600-900"""


def add_fleet_command_flags(parser: argparse.ArgumentParser) -> None:
    add_fleet_flags(parser)
    parser.add_argument("--scaler", required=True, metavar="SCALER", help="autoscaler, see below")
    output = parser.add_argument_group("what to print")
    add_json_flag(output)
    output.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw replicas, arrivals, share in target and queue over time"
    )
    output.add_argument(
        "--decisions", action="store_true", help="list the decisions of the operator with their reasons"
    )


def run_fleet_command(flags: argparse.Namespace) -> int:
    """Raises InputError, and OSError where the JSON file cannot be written."""
    config = fleet_config(flags)
    requests = read_load(flags)
    progress = TerminalProgress(flags.scaler)
    run = simulate_named(flags.scaler, requests, config, progress)
    progress.end()
    if flags.plot is not None:
        # Imported on demand: the import takes longer than many simulations.
        from inflight_simulator.fleet.commands.plot import plot_fleet

        plot_fleet(flags.plot, flags.scaler, run)
    summary = summarize_fleet(flags.scaler, requests, config, run)
    print_numbers(flags, summary, lambda: _text(summary, decisions=flags.decisions))
    return 0


def _text(summary: FleetSummary, *, decisions: bool) -> str:
    text = fleet_table(summary)
    if decisions:
        text += "\n\n" + ("\n".join(summary.decisions) or "The operator decided nothing.")
    return text


_FIRST_S, _EVERY_S = 2.0, 0.5


class TerminalProgress:
    """A line on standard error, updated in place and cleared at the end; nothing if standard error is no terminal."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = time.monotonic()
        self._next = self._begun + _FIRST_S
        self._shown = False

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next = now + _EVERY_S
        left = (now - self._begun) * (1 - share) / share if share else 0.0
        print(
            f"\r{self._name}: {share:.0%} of the requests have arrived, about {left:.0f} s left \033[K",
            end="",
            file=sys.stderr,
        )
        self._shown = True

    def end(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

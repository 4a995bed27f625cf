"""`inflight-simulate engine` and `compare`: one engine, from a file of arrivals."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from inflight_simulator.errors import InputError
from inflight_simulator.flags import CONTINUOUS_ONLY, PREFILL_ONLY, add_engine_flags, add_trace_flags, finite, flag_of
from inflight_simulator.outcome import Run
from inflight_simulator.report import comparison_table, run_table
from inflight_simulator.setup import Setup, setup
from inflight_simulator.summary import summarize, write_requests

STATIC, CONTINUOUS, NO_CHUNKS = "static", "continuous", "continuous, no chunked prefill"


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    add_trace_flags(parser)
    add_engine_flags(parser)
    output = parser.add_argument_group("what to print")
    output.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    output.add_argument("--plot", type=Path, metavar="FILE.png", help="draw slots, queue and KV cache over time")
    output.add_argument(
        "--plot-window", type=_window, metavar="FROM:UNTIL", help="seconds to draw, as in 60:90 (default: all)"
    )


def add_engine_command_flags(parser: argparse.ArgumentParser) -> None:
    add_common_flags(parser)
    parser.add_argument(
        "--batching",
        choices=("continuous", "static"),
        default="continuous",
        help="continuous: the engine's own scheduler; static: fill a batch, run it to its longest, refill"
        " (default %(default)s)",
    )
    parser.add_argument("--requests", type=Path, metavar="FILE.csv", help="write a row for each request")


def run_engine(flags: argparse.Namespace) -> int:
    """Simulates a kind of batching. Raises as `setup` does, and OSError where a file cannot be written."""
    if flags.plot_window and not flags.plot:
        raise InputError("--plot-window is of --plot, which is missing")
    simulated = setup(flags)
    _note_unused(flags)
    if flags.batching == "static":
        name, run = "static batching", simulated.static()
    elif flags.no_chunked_prefill and not simulated.unit_cost:
        name, run = "continuous batching without chunked prefill", simulated.continuous_without_chunks()
    else:
        name, run = "continuous batching", simulated.continuous()
    _note_refused(run)
    if not run.outcomes:
        return 1
    summary = summarize(run)
    if flags.requests:
        write_requests(flags.requests, run)
    if flags.plot:
        _plot(flags, {name: run})
    print(msgspec.json.encode(summary).decode() if flags.json else run_table(run, summary, name))
    return 0


def run_compare(flags: argparse.Namespace) -> int:
    """Simulates all kinds of batching. Raises as `run_engine`."""
    if flags.plot_window and not flags.plot:
        raise InputError("--plot-window is of --plot, which is missing")
    simulated = setup(flags)
    _note_unused(flags)
    runs = {name: run() for name, run in _kinds(simulated).items()}
    _note_refused(runs[STATIC])
    if not runs[STATIC].outcomes:
        return 1
    summaries = {name: summarize(run) for name, run in runs.items()}
    if flags.plot:
        _plot(flags, runs)
    if flags.json:
        print(msgspec.json.encode({_key(name): summary for name, summary in summaries.items()}).decode())
    else:
        print(comparison_table({name: (run, summaries[name]) for name, run in runs.items()}))
    return 0


def _kinds(simulated: Setup) -> dict[str, Callable[[], Run]]:
    kinds = {STATIC: simulated.static, NO_CHUNKS: simulated.continuous_without_chunks, CONTINUOUS: simulated.continuous}
    if simulated.unit_cost:
        # Prefill is free, and so are its chunks.
        del kinds[NO_CHUNKS]
    return kinds


def _window(text: str) -> tuple[float, float]:
    begin, _, end = text.partition(":")
    seconds = finite(0)
    window = seconds(begin), seconds(end)
    if window[0] >= window[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:UNTIL in seconds, as in 60:90")
    return window


def _key(name: str) -> str:
    return name.replace(",", "").replace(" ", "_")


def _plot(flags: argparse.Namespace, runs: dict[str, Run]) -> None:
    # Imported on demand: the import takes longer than many simulations.
    from inflight_simulator.plot import Window, plot, whole

    window = Window(*flags.plot_window) if flags.plot_window else whole(runs)
    if not any(window.shows(*whole({name: run})) for name, run in runs.items()):
        raise InputError(f"--plot-window: nothing happens from {window.begin:g} to {window.end:g} s")
    plot(flags.plot, runs, window)


def _note_refused(run: Run) -> None:
    if not run.refusals:
        return
    first = run.refusals[0]
    total = len(run.refusals) + len(run.outcomes)
    print(
        f"note: {len(run.refusals)} of {total} requests can never fit and were refused; "
        f"the first is number {first.request_id}: {first.reason}",
        file=sys.stderr,
    )


def _note_unused(flags: argparse.Namespace) -> None:
    if flags.command == "engine" and flags.batching == "static":
        _note("static batching has no use for", flags, CONTINUOUS_ONLY)
    elif flags.cost == "unit":
        _note("with --cost unit, where prefill is free, there is no use for", flags, PREFILL_ONLY)


def _note(sentence: str, flags: argparse.Namespace, unused: Sequence[str]) -> None:
    given = [flag_of(name) for name in unused if getattr(flags, name) is not None]
    if given:
        print(f"note: {sentence} {', '.join(given)}", file=sys.stderr)

"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inflight_settings.flag_types import number
from inflight_settings.limits import Limits
from tools.bench.autopilot.figures import Targets

SEQS, TOKENS = (4, 12, 32, 96), (96, 384, 2048)
QUICK_SEQS, QUICK_TOKENS = (4, 32), (128, 2048)

_above_zero = number(float, 0.001)

_EPILOG = """\
parts:
  load   probes for the highest load of which the best of some fixed settings keeps at least 95%, twice; 90% of it is
         used: beyond it a queue that grew once stays, and which setting is the best is chance
  fixed  each of 12 fixed settings serves the same slice of a trace at that load; the best one is measured longer
  starts a fresh engine for each bad start; the operator's own code scrapes it, decides every 3 s and sets its limits
  shift  behind the last start the traffic changes from short prompts to long ones
Starts and shift are run several times, and the tables have medians, too.

Goodput is the rate of requests that keep both targets, as their client sees it.

examples:
  python -m tools.bench.autopilot --quick --tpot 0.08 --json figures.json
  python -m tools.bench.autopilot --keep runs.json --only fixed; then --keep runs.json --only autopilot --repeats 1,
  again with 2 and with 3: each adds what is not yet in the file, also after it was stopped
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark.

    Attributes:
        targets: of TTFT and TPOT.
        engine: `inflight`, or `vllm` with the plugin.
        only: the one part to run, `fixed` or `autopilot`; None: both.
        repeats: how often each start is run.
        keep: file of results.
        window: seconds of the slice, over which goodput is measured.
        lead_time: seconds of traffic before a fixed setting is measured.
        turns: how often the slice comes in a run of the autopilot, for each kind of traffic.
        again: slices that the best settings are measured over once more.
        settings: limits that are measured without change.
        threads: of the engine; None: all cores.
    """

    targets: Targets
    engine: str
    only: str | None
    repeats: int
    keep: Path | None
    window: float
    lead_time: float
    turns: int
    again: int
    settings: tuple[Limits, ...]
    threads: int | None
    seed: int
    quick: bool
    json: Path | None
    logs: Path | None


def parse(argv: Sequence[str] | None) -> Options:
    """Exits with 2 on wrong usage, with 0 after --help."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.autopilot",
        description="Goodput of one engine on this machine's CPU: fixed limits, and limits set by the operator's code.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ttft", type=_above_zero, default=1.0, metavar="SECONDS", help="target (default: 1)")
    parser.add_argument("--tpot", type=_above_zero, default=0.06, metavar="SECONDS", help="target (default: 0.06)")
    parser.add_argument("--engine", choices=("inflight", "vllm"), default="inflight", help="(default: inflight)")
    parser.add_argument("--only", choices=("fixed", "autopilot"), help="run one part; the other one's results are kept")
    parser.add_argument("--repeats", type=int, metavar="N", help="of each start (default: 3; with --quick 1)")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep results there, and measure what it has not")
    parser.add_argument("--threads", type=int, metavar="N", help="of the engine (default: all cores)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts' tokens (default: 1)")
    parser.add_argument(
        "--quick", action="store_true", help="4 settings, one start and the shift in 4 minutes: to see that it works"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the engines' logs there")
    flags = parser.parse_args(argv)
    seqs, tokens = (QUICK_SEQS, QUICK_TOKENS) if flags.quick else (SEQS, TOKENS)
    if flags.only == "autopilot" and flags.keep is None:
        parser.error("--only autopilot needs --keep, with the results of --only fixed")
    return Options(
        targets=Targets(flags.ttft, flags.tpot),
        engine=flags.engine,
        only=flags.only,
        repeats=flags.repeats or (1 if flags.quick else 3),
        keep=flags.keep,
        window=8.0 if flags.quick else 10.0,
        lead_time=3.0 if flags.quick else 4.0,
        turns=7 if flags.quick else 8,
        again=2 if flags.quick else 3,
        settings=tuple(Limits(one, other) for one in seqs for other in tokens),
        threads=flags.threads,
        seed=flags.seed,
        quick=flags.quick,
        json=flags.json,
        logs=flags.logs,
    )

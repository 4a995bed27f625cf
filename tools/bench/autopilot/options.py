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
  sweep  each fixed setting serves the same slice of a trace, at a share of what the engine was found to do at most
  starts a fresh engine for each bad start; the operator's own code scrapes it, decides every 3 s and sets its limits
  shift  behind the last start the traffic changes from short prompts to long ones

Goodput is the rate of requests that keep both targets, as their client sees it.

example: python -m tools.bench.autopilot --quick --tpot 0.08 --json figures.json
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark.

    Attributes:
        targets: of TTFT and TPOT.
        load: share of what the engine does at most that requests come at.
        window: seconds of the slice, over which goodput is measured.
        lead_time: seconds of traffic before a fixed setting is measured.
        turns: how often the slice comes in a run of the autopilot, for each kind of traffic.
        finalists: best settings that are measured twice.
        settings: limits that are measured without change.
        threads: of the engine; None: all cores.
    """

    targets: Targets
    load: float
    window: float
    lead_time: float
    turns: int
    finalists: int
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
    parser.add_argument(
        "--load", type=_above_zero, default=0.75, metavar="SHARE",
        help="requests a second, of what the engine does when all come at once (default: 0.75)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="N", help="of the engine (default: all cores)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts' tokens (default: 1)")
    parser.add_argument(
        "--quick", action="store_true", help="4 settings, one start and the shift in 4 minutes: to see that it works"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the engines' logs there")
    flags = parser.parse_args(argv)
    seqs, tokens = (QUICK_SEQS, QUICK_TOKENS) if flags.quick else (SEQS, TOKENS)
    return Options(
        targets=Targets(flags.ttft, flags.tpot),
        load=flags.load,
        window=8.0 if flags.quick else 10.0,
        lead_time=3.0 if flags.quick else 4.0,
        turns=7 if flags.quick else 8,
        finalists=1 if flags.quick else 2,
        settings=tuple(Limits(one, other) for one in seqs for other in tokens),
        threads=flags.threads,
        seed=flags.seed,
        quick=flags.quick,
        json=flags.json,
        logs=flags.logs,
    )

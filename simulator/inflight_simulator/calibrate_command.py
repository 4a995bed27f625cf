"""`inflight-simulate calibrate`: fits the cost model of the machine that made a recording."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inflight_simulator.calibrate import Fit, fit_cost
from inflight_simulator.cost import check_cost, write_cost
from inflight_simulator.errors import InputError
from inflight_simulator.flags import COST_FLAGS
from inflight_simulator.step_log import read_steps


def add_calibrate_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recording",
        type=Path,
        metavar="RECORDING",
        help="recording of a varied load by `inflight-engine serve --record`",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the cost model, for `engine --cost`")


def run_calibrate(flags: argparse.Namespace) -> int:
    """Raises InputError, and OSError where the file cannot be written."""
    works, seconds = read_steps(flags.recording)
    measured = seconds > 0
    try:
        fit = fit_cost(works[measured], seconds[measured])
    except ValueError as error:
        raise InputError(f"{flags.recording}: {error}") from error
    print(fit_text(fit))
    if fit.poor:
        print(
            "note: the fit is poor; record a longer and more varied load, on a machine that does nothing else",
            file=sys.stderr,
        )
    if flags.out:
        try:
            check_cost(fit.cost)
        except InputError as error:
            raise InputError(f"{flags.recording}: too little varies in it to fit a cost model: {error}") from error
        write_cost(flags.out, fit.cost)
    return 0


def fit_text(fit: Fit) -> str:
    lines = [f"{fit.num_steps} steps"]
    for field, (flag, unit, text) in COST_FLAGS.items():
        kept = "  (default: no step did this)" if field in fit.unseen else ""
        lines.append(f"{flag:32} {getattr(fit.cost, field) / unit:12.6g}  {text}{kept}")
    if fit.cost.curve:
        pairs = ", ".join(f"{tokens:g}: {seconds * 1e3:.1f}" for tokens, seconds in fit.cost.curve)
        lines.append(f"and milliseconds by tokens computed in the step: {pairs}")
    lines.append(f"R2 {fit.r2:.3f}, median error {fit.median_error:.1%}")
    for name, error in (("decode only", fit.median_error_decode), ("with prefill", fit.median_error_prefill)):
        if error is not None:
            lines.append(f"  steps {name}: median error {error:.1%}")
    return "\n".join(lines)

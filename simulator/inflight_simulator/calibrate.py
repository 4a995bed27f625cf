"""`inflight-simulate calibrate`: fits the cost model of the machine that made a recording, and reports the error."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inflight_cost.model import CostModel, StepWork
from inflight_engine.recording.lines import Header, Step
from inflight_engine.recording.reader import Recording, RecordingError
from inflight_fit.fit import fit_steps
from inflight_fit.least_squares import Floats
from inflight_simulator.cost import LLAMA_8B_H100, check_cost, write_cost
from inflight_simulator.errors import InputError
from inflight_simulator.flags import COST_FLAGS
from inflight_simulator.fleet.commands.replica_file import ReplicaFile, write_replica

_HICCUPS = 0.01
"""Share of steps that R2 excludes: one step with a pause of the machine outweighs thousands."""
POOR_ERROR = 0.1
POOR_R2 = 0.9
_MICRO = 1e-6


def read_steps(path: Path) -> tuple[Floats, Floats]:
    """Read the steps of a recording that gave tokens; failed ones are left out.

    Returns:
        [steps, numbers of `StepWork`] and the seconds of each step.

    Raises:
        InputError: the file cannot be read, is no recording, or has no steps.
    """
    try:
        events = Recording(path).events()
        steps = [event for event in events if isinstance(event, Step) and event.ended is not None]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except RecordingError as error:
        raise InputError(f"{path} {error}") from error
    if not steps:
        raise InputError(f"{path} has no steps in it")
    return np.array([step.work for step in steps], np.float64), np.array([step.micros * _MICRO for step in steps])


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost model and its goodness of fit.

    Attributes:
        unseen: factors of work that no step had; they keep the default.
        r2: share of the variance of step times that it explains, at most 1; without the 1% of steps with the largest
            error.
        median_error: of |predicted - measured| / measured, all steps; `median_error_decode` of those that only decode,
            `median_error_prefill` of the others; None where there are none.
        noise: standard deviation of log(measured / predicted), of the steps that `r2` counts.
    """

    cost: CostModel
    unseen: tuple[str, ...]
    num_steps: int
    r2: float
    median_error: float
    median_error_decode: float | None
    median_error_prefill: float | None
    noise: float

    @property
    def poor(self) -> bool:
        return self.median_error > POOR_ERROR or self.r2 < POOR_R2


def fit_cost(works: Floats, seconds: Floats) -> Fit:
    """Fits a cost model with `fit_steps`; a factor of work that no step had keeps its default.

    Args:
        works: [steps, numbers of `StepWork`].
        seconds: [steps], above 0.

    Raises:
        ValueError: fewer steps than factors.
    """
    fitted = fit_steps(works, seconds, LLAMA_8B_H100)
    errors, decode_only = fitted.errors, works[:, StepWork._fields.index("prefill_tokens")] == 0
    predicted = np.array([fitted.cost.seconds(StepWork(*work)) for work in works.tolist()])
    counted = errors <= np.quantile(errors, 1 - _HICCUPS)
    return Fit(
        cost=fitted.cost,
        unseen=fitted.unseen,
        num_steps=len(seconds),
        r2=_r2(seconds, predicted, counted),
        median_error=fitted.median_error,
        median_error_decode=_median(errors[decode_only]),
        median_error_prefill=_median(errors[~decode_only]),
        noise=float(np.log(seconds[counted] / predicted[counted]).std()),
    )


def _r2(measured: Floats, predicted: Floats, counted: npt.NDArray[np.bool_]) -> float:
    measured, predicted = measured[counted], predicted[counted]
    variance = float(((measured - measured.mean()) ** 2).sum())
    return 1 - float(((measured - predicted) ** 2).sum()) / variance if variance else 1.0


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def add_calibrate_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recording",
        type=Path,
        metavar="RECORDING",
        help="recording of a varied load by `inflight-engine serve --record`, or by the plugin for vLLM",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the cost model, for `engine --cost`")
    parser.add_argument(
        "--replica",
        type=Path,
        metavar="FILE.json",
        help="write the replica, for `fleet --replica` and `plan --replica`: the cost model and the noise around it,"
        " and the KV cache and the largest limits of the engine that made the recording",
    )


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
    if flags.out or flags.replica:
        try:
            check_cost(fit.cost)
        except InputError as error:
            raise InputError(f"{flags.recording}: too little varies in it to fit a cost model: {error}") from error
    if flags.out:
        write_cost(flags.out, fit.cost)
    if flags.replica:
        write_replica(flags.replica, _replica(fit, Recording(flags.recording).header))
    return 0


def _replica(fit: Fit, header: Header) -> ReplicaFile:
    engine = header.config
    return ReplicaFile(
        fit.cost,
        kv_tokens=engine.num_blocks * engine.block_size,
        block_size=engine.block_size,
        host_tokens=engine.num_host_blocks * engine.block_size,
        kv_bytes_per_token=header.kv_bytes_per_token,
        kv_headroom=engine.kv_headroom,
        capacity=engine.capacity,
        noise=fit.noise,
    )


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

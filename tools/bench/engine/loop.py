"""Rows about the engine's loop: results of `tools.bench.engine_loop`, which runs in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys

from tools.bench.engine.figures import Failure, Figure
from tools.bench.engine.report import Result
from tools.localcluster.layout import REPOSITORY

_SIZES = (32, 256)
_SECONDS = 120
_UNIT = "us between forwards"


def loop(num_steps: int) -> list[Result]:
    """Returns a row for each number of running requests, with medians over `num_steps`."""
    command = [sys.executable, "-m", "tools.bench.engine_loop", "--json", "--steps", str(num_steps), "--sizes"]
    command += map(str, _SIZES)
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY, timeout=_SECONDS)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["nothing printed"])[-1]
        return [_failed(f"tools.bench.engine_loop: {reason[:200]}")]
    except subprocess.TimeoutExpired:
        return [_failed(f"tools.bench.engine_loop took more than {_SECONDS} s")]
    return results(done.stdout)


def results(document: str) -> list[Result]:
    """Reads the output of `tools.bench.engine_loop --json`."""
    report = json.loads(document)
    return [
        Result(
            f"engine loop, {size['num_running']} running",
            _UNIT,
            False,
            Figure.of([size["gap"]["median"]]),
            note=f"the median of {size['num_steps']} decode steps; 95% of them within {size['gap']['p95']:.0f} us",
        )
        for size in report["sizes"]
    ]


def _failed(reason: str) -> Result:
    return Result("engine loop", _UNIT, False, Failure(reason))

"""The plugin for vLLM: its time in a step, throughput beside a vLLM without it, and the error of the fitted step cost.

    python -m tools.bench.vllm_plugin overhead --pairs 10    # 20 starts of vLLM, 20 minutes on two cores
    python -m tools.bench.vllm_plugin fit                    # beside the engine's own fit, 10 minutes

Both on a quiet machine: each step waits for all cores.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from inflight_cost.model import CostModel, StepWork
from inflight_fit.fit import fit_steps
from inflight_fit.least_squares import Floats
from inflight_simulator.calibrate import read_steps
from tools.bench.simulator import ENGINE_FLAGS, VOCAB_SIZE, calibration_jobs
from tools.bench.vllm_server import served_vllm
from tools.load.trace_load import Job, run_load
from tools.measure.report import cpu_model, percentile, say, table, write_json
from tools.measure.served import served_engine

OWN_SECONDS_GOAL = 50e-6
THROUGHPUT_GOAL = 0.03
_REQUESTS, _PROMPT_TOKENS, _OUTPUT_TOKENS = 96, 64, 64
_WARM_UP = 8
_TRAINED = 0.7
"""Share of the steps that the cost is fitted to; it is compared with the others."""
_OWN, _STEPS = "inflight_plugin_own_seconds_total", "inflight_plugin_steps_total"


class Run(NamedTuple):
    """A load on a new server. Attributes: tokens_s: output tokens a second. own_s: the plugin's seconds in a step."""

    tokens_s: float
    own_s: float | None


class HeldOut(NamedTuple):
    """Errors of a fit in steps that it has not seen: |predicted - measured| / measured."""

    steps: int
    median: float
    p90: float


def measured(folder: Path, *, plugin: bool) -> Run:
    """Start a server, and send a load after a short one."""
    environment = {"INFLIGHT_STATE_FILE": str(folder / "state")}
    with served_vllm(folder / "log", *ENGINE_FLAGS, say=say, environment=environment, plugin=plugin) as server:
        _load(server.url, _WARM_UP, seed=1)
        before = _counters(server.url) if plugin else None
        started = time.monotonic()
        _load(server.url, _REQUESTS, seed=2)
        tokens_s = _REQUESTS * _OUTPUT_TOKENS / (time.monotonic() - started)
        if before is None:
            return Run(tokens_s, None)
        own, steps = (now - then for now, then in zip(_counters(server.url), before, strict=True))
        return Run(tokens_s, own / steps)


def _load(url: str, requests: int, *, seed: int) -> None:
    jobs = [Job(0.0, _PROMPT_TOKENS, _OUTPUT_TOKENS) for _ in range(requests)]
    asyncio.run(run_load(url, jobs, vocab_size=VOCAB_SIZE, seed=seed))


def _counters(url: str) -> tuple[float, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    # The operator's reader counts in whole numbers, and these seconds are below one.
    values = {sample.name: sample.value for family in families for sample in family.samples}
    return values[_OWN], values[_STEPS]


def overhead(pairs: int) -> tuple[bool, dict[str, object]]:
    """Compare servers with and without the plugin, in turns that change places."""
    ratios: list[float] = []
    own: list[float] = []
    for pair in range(pairs):
        both: dict[bool, Run] = {}
        for plugin in (True, False) if pair % 2 else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                both[plugin] = measured(Path(folder), plugin=plugin)
        ratios.append(both[True].tokens_s / both[False].tokens_s)
        own.append(both[True].own_s or 0.0)
        say(
            f"pair {pair + 1}: {both[True].tokens_s:.0f} tokens/s with the plugin, {both[False].tokens_s:.0f} without "
            f"({ratios[-1]:.3f}); the plugin takes {own[-1] * 1e6:.0f} us a step"
        )
    ratio, own_s = statistics.median(ratios), statistics.median(own)
    say(
        f"median of {pairs} pairs: {ratio:.3f} of the throughput (goal: at least {1 - THROUGHPUT_GOAL:.2f}; range "
        f"{min(ratios):.3f} to {max(ratios):.3f}), {own_s * 1e6:.0f} us a step (goal: at most "
        f"{OWN_SECONDS_GOAL * 1e6:.0f})"
    )
    good = ratio >= 1 - THROUGHPUT_GOAL and own_s <= OWN_SECONDS_GOAL
    return good, {"ratios": ratios, "own_s": own}


def fits() -> dict[str, object]:
    """Record the same varied load on both engines, and fit a part of each record's steps."""
    jobs = calibration_jobs(random.Random(7))
    rows: list[Sequence[str]] = [("engine", "held-out steps", "median error", "p90")]
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for engine in ("vllm", "inflight"):
            file = folder / f"{engine}.record"
            _record(engine, folder, file, jobs)
            works, seconds = read_steps(file)
            found = held_out(works[seconds > 0], seconds[seconds > 0])
            rows.append((engine, f"{found.steps}", f"{found.median:.1%}", f"{found.p90:.1%}"))
            figures[engine] = found._asdict()
    for line in table(rows):
        say(line)
    return figures


def _record(engine: str, folder: Path, file: Path, jobs: Sequence[Job]) -> None:
    log = folder / f"{engine}.log"
    if engine == "vllm":
        environment = {"INFLIGHT_STATE_FILE": str(folder / "state"), "INFLIGHT_RECORD_FILE": str(file)}
        with served_vllm(log, *ENGINE_FLAGS, say=say, environment=environment) as server:
            asyncio.run(run_load(server.url, jobs, vocab_size=VOCAB_SIZE))
    else:
        with served_engine(log, *ENGINE_FLAGS, "--max-queued-requests=100000", f"--record={file}") as url:
            asyncio.run(run_load(url, jobs, vocab_size=VOCAB_SIZE))


def held_out(works: Floats, seconds: Floats) -> HeldOut:
    """Fit a random part of the steps and predict the others.

    Args:
        works: [steps, numbers of `StepWork`].
        seconds: [steps], above 0.
    """
    chosen = np.random.default_rng(0).random(len(seconds)) < _TRAINED
    cost: CostModel = fit_steps(works[chosen], seconds[chosen], CostModel(0, 0, 0, 0, 0)).cost
    predicted = np.array([cost.seconds(StepWork(*work)) for work in works[~chosen].tolist()])
    errors = np.abs(predicted / seconds[~chosen] - 1).tolist()
    return HeldOut(len(errors), percentile(errors, 0.5), percentile(errors, 0.9))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("overhead", "fit"))
    parser.add_argument("--pairs", type=int, default=10, help="of servers, for overhead (default: 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args()
    say(cpu_model())
    if options.part == "overhead":
        good, figures = overhead(options.pairs)
    else:
        good, figures = True, fits()
    write_json(options.json, figures)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""The plugin for vLLM: its time in a step, throughput beside a vLLM without it, and the error of the fitted step cost.

    python -m tools.bench.vllm_plugin overhead --pairs 10    # 10 minutes on two cores, 8 GB of memory
    python -m tools.bench.vllm_plugin fit                    # beside the engine's own fit, 10 minutes

Both on a quiet machine: each step waits for all cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from inflight_cost.model import CostModel, StepWork
from inflight_fit.fit import fit_steps
from inflight_fit.least_squares import Floats
from inflight_simulator.calibrate import read_steps
from tools.bench.simulator import ENGINE_FLAGS, VOCAB_SIZE, calibration_jobs
from tools.bench.vllm_server import VllmServer, served_vllm
from tools.load.trace_load import Job, run_load
from tools.measure.processes import family_cpu, process_cpu
from tools.measure.report import cpu_model, percentile, say, table, write_json
from tools.measure.served import served_engine
from tools.signals import exit_on_signals

OWN_SECONDS_GOAL = 50e-6
THROUGHPUT_GOAL = 0.03
_REQUESTS, _PROMPT_TOKENS, _OUTPUT_TOKENS = 96, 64, 64
_PAIRS_OF_A_START = 4
"""Pairs until both servers are started anew: where a process has its memory makes it faster or slower for its life."""
_TRAINED = 0.7
"""Share of the steps that the cost is fitted to; it is compared with the others."""
_OWN, _BESIDE = "inflight_plugin_own_seconds_total", "inflight_plugin_beside_seconds_total"
_STEPS = "inflight_plugin_steps_total"
_REPORTED_S = 0.5
"""Seconds after which the last step is reported."""


class Run(NamedTuple):
    """A load on a server.

    Attributes:
        tokens_s: output tokens a second.
        cpu_s: CPU seconds of all of the server's processes for an output token.
        api_s: of these, those of the process with the API and the middleware.
        own_s: the plugin's CPU seconds in a step; None: the server has no plugin.
        beside_s: those of its thread beside the steps, for each step.
    """

    tokens_s: float
    cpu_s: float
    api_s: float
    own_s: float | None
    beside_s: float = 0.0


class HeldOut(NamedTuple):
    """Errors of a fit in steps that it has not seen: |predicted - measured| / measured."""

    steps: int
    median: float
    p90: float


def measured(server: VllmServer, *, plugin: bool, seed: int) -> Run:
    """Send a load, with prompts of its own so that no load finds those of another in the prefix cache."""
    before = _counters(server.url) if plugin else None
    cpu, api, started = family_cpu(server.pid), process_cpu(server.pid), time.monotonic()
    jobs = [Job(0.0, _PROMPT_TOKENS, _OUTPUT_TOKENS) for _ in range(_REQUESTS)]
    asyncio.run(run_load(server.url, jobs, vocab_size=VOCAB_SIZE, seed=seed))
    tokens, seconds = _REQUESTS * _OUTPUT_TOKENS, time.monotonic() - started
    cpu, api = family_cpu(server.pid) - cpu, process_cpu(server.pid) - api
    own_s, beside_s = None, 0.0
    if before is not None:
        time.sleep(_REPORTED_S)
        own, beside, steps = (after - value for after, value in zip(_counters(server.url), before, strict=True))
        own_s, beside_s = own / steps, beside / steps
    return Run(tokens / seconds, cpu / tokens, api / tokens, own_s, beside_s)


def _counters(url: str) -> tuple[float, float, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    # The operator's reader counts in whole numbers, and these seconds are below one.
    values = {sample.name: sample.value for family in families for sample in family.samples}
    return values[_OWN], values[_BESIDE], values[_STEPS]


class Pair(NamedTuple):
    """The same load on both servers, one after the other."""

    plain: Run
    plugin: Run

    @property
    def ratio(self) -> float:
        """Throughput with the plugin, as a share of that without."""
        return self.plugin.tokens_s / self.plain.tokens_s


def overhead(pairs: int) -> tuple[bool, dict[str, object]]:
    """Compare a server with the plugin and one without, which run beside each other and get loads in turns: AB, BA, AB
    and so on, so that a machine that gets slower counts for neither."""
    found: list[Pair] = []
    while len(found) < pairs:
        with _both(len(found)) as servers:
            for _ in range(min(_PAIRS_OF_A_START, pairs - len(found))):
                number = len(found)
                runs = {
                    plugin: measured(servers[plugin], plugin=plugin, seed=number + 1)
                    for plugin in ((False, True) if number % 2 == 0 else (True, False))
                }
                found.append(Pair(runs[False], runs[True]))
                say(f"pair {number + 1}: {_said(found[-1])}")
    return verdict(found)


@contextlib.contextmanager
def _both(number: int) -> Iterator[Mapping[bool, VllmServer]]:
    """Servers with and without the plugin, each after a load that does not count."""
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        servers: dict[bool, VllmServer] = {}
        for plugin in (False, True):
            log = folder / f"{plugin}.log"
            servers[plugin] = running.enter_context(served_vllm(log, *ENGINE_FLAGS, say=say, plugin=plugin))
            measured(servers[plugin], plugin=plugin, seed=1000 + number)
        yield servers


def _said(pair: Pair) -> str:
    plain, plugin = pair
    own_s = plugin.own_s or 0.0
    return (
        f"{plugin.tokens_s:.0f} tokens/s with the plugin, {plain.tokens_s:.0f} without ({pair.ratio:.3f}); CPU "
        f"{plugin.cpu_s * 1e6:.0f} and {plain.cpu_s * 1e6:.0f} us a token, of these the API process "
        f"{plugin.api_s * 1e6:.0f} and {plain.api_s * 1e6:.0f}; the plugin takes {own_s * 1e6:.0f} us a step, and "
        f"{plugin.beside_s * 1e6:.0f} us beside it"
    )


def verdict(found: Sequence[Pair]) -> tuple[bool, dict[str, object]]:
    """Print and return the medians, and whether they reach the goals."""
    ratios = [pair.ratio for pair in found]
    ratio, own_s = statistics.median(ratios), statistics.median([pair.plugin.own_s or 0.0 for pair in found])
    beside_s = statistics.median([pair.plugin.beside_s for pair in found])
    cpu = statistics.median([pair.plugin.cpu_s / pair.plain.cpu_s for pair in found])
    api = statistics.median([pair.plugin.api_s / pair.plain.api_s for pair in found])
    say(
        f"median of {len(found)} pairs: {ratio:.3f} of the throughput (goal: at least {1 - THROUGHPUT_GOAL:.2f}; "
        f"quartiles {percentile(ratios, 0.25):.3f} and {percentile(ratios, 0.75):.3f}), {cpu:.3f} of the CPU time "
        f"(API process: {api:.3f}), {own_s * 1e6:.0f} us a step (goal: at most {OWN_SECONDS_GOAL * 1e6:.0f}), "
        f"{beside_s * 1e6:.0f} us beside it"
    )
    good = ratio >= 1 - THROUGHPUT_GOAL and own_s <= OWN_SECONDS_GOAL
    pairs = [{"plain": pair.plain._asdict(), "plugin": pair.plugin._asdict()} for pair in found]
    return good, {"ratio": ratio, "cpu": cpu, "api": api, "own_s": own_s, "beside_s": beside_s, "pairs": pairs}


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
    exit_on_signals()
    say(cpu_model())
    if options.part == "overhead":
        good, figures = overhead(options.pairs)
    else:
        good, figures = True, fits()
    write_json(options.json, figures)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Rows beside throughput: start to ready, the overhead of HTTP over the engine alone, and the engine's loop."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.bench.engine.jobs import Job
from tools.bench.engine.peers import Model, Peer, driver_environment
from tools.bench.engine.process import EngineError, started
from tools.bench.engine.report import Cell, Failure, Figure, Result
from tools.localcluster.layout import REPOSITORY
from tools.measure.served import ENGINE, FIRST_PORT, free_port, seconds_to_ready, served_engine

OURS = "tools.bench.engine.drivers.ours"
_HTTP_SECONDS = 120
_LOOP_SECONDS = 120
_LOOP_SIZES = (32, 256)
_LOOP_UNIT = "us between forwards"
_PEER_RUNS = 2


def ready(model: Model, peers: Mapping[Peer, Path], cpus: list[int], logs: Path, num_runs: int) -> Result:
    """Seconds until each server takes requests; `peers` with their virtual environments."""

    def ours() -> float:
        port = free_port(FIRST_PORT)
        command = [str(ENGINE), "serve", str(model.folder), "--host=127.0.0.1", f"--port={port}", "--dtype=bfloat16"]
        return seconds_to_ready(command, f"http://127.0.0.1:{port}/ready", {}, logs / "ready-inflight.log")

    def of(peer: Peer, venv: Path, arguments: Callable[[Model, int], list[str]]) -> float:
        port = free_port(FIRST_PORT)
        command = [str(venv / "bin" / "python"), *arguments(model, port)]
        log = logs / f"ready-{peer.name}.log"
        environment = driver_environment(peer, venv, cpus)
        return seconds_to_ready(command, f"http://127.0.0.1:{port}/health", environment, log)

    theirs: dict[str, Cell] = {}
    for peer, venv in peers.items():
        if (server := peer.server) is not None:
            theirs[peer.title] = _figure(min(num_runs, _PEER_RUNS), lambda p=peer, v=venv, s=server: of(p, v, s))  # type: ignore[misc]
    return Result("start to ready", "s", False, _figure(num_runs, ours), theirs)


def http(settings: Mapping[str, Any], job: Job, logs: Path, num_runs: int) -> list[Result]:
    """The job over HTTP and offline, both with one engine thread; the client computes on another CPU."""
    one_thread = {**settings, "num_threads": 1}
    offline, served = _offline(one_thread, job, logs, num_runs), _served(job, logs, num_runs)
    title = f"{len(job.prompt_tokens)} x ({job.prompt_tokens[0]} in, {job.output_tokens} out), 1 engine thread"
    note = ""
    if isinstance(offline, Figure) and isinstance(served, Figure):
        note = f"over HTTP, streamed, is {served.median / offline.median:.0%} of offline"
    return [
        Result(f"{title}, offline", "tokens/s", True, offline),
        Result(f"{title}, over HTTP", "tokens/s", True, served, note=note),
    ]


def _offline(settings: Mapping[str, Any], job: Job, logs: Path, num_runs: int) -> Cell:
    try:
        with started(Path(sys.executable), OURS, settings, {}, logs / "offline-1.log") as engine:
            engine.measure(job)
            return Figure.of([job.num_output_tokens / engine.measure(job) for _ in range(num_runs)])
    except EngineError as error:
        return Failure(f"offline with one thread: {error}")


def _served(job: Job, logs: Path, num_runs: int) -> Cell:
    flags = ("--dtype=bfloat16", "--num-threads=1", "--no-prefix-caching")
    with ExitStack() as stack:
        try:
            url = stack.enter_context(served_engine(logs / "http.log", *flags))
            port = int(url.rsplit(":", 1)[1])
            _client(port, job)
            return Figure.of([job.num_output_tokens / _client(port, job) for _ in range(num_runs)])
        except RuntimeError as error:
            return Failure(f"over HTTP: {error}")


def _client(port: int, job: Job) -> float:
    """Seconds that the client measured.

    Raises:
        RuntimeError: it failed.
    """
    fields = json.dumps({**asdict(job), "vocab_size": 49152})
    command = [sys.executable, "-m", "tools.bench.engine.http_client", str(port), fields]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=REPOSITORY, timeout=_HTTP_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not answered within {_HTTP_SECONDS} s") from None
    if done.returncode:
        raise RuntimeError(f"the client failed: {done.stderr.strip().splitlines()[-1][:200]}")
    return float(done.stdout)


def _figure(num_runs: int, measure: Callable[[], float]) -> Cell:
    try:
        return Figure.of([measure() for _ in range(num_runs)])
    except RuntimeError as error:
        return Failure(str(error))


def loop(num_steps: int) -> list[Result]:
    """Returns a row for each number of running requests, with medians over `num_steps`."""
    command = [sys.executable, "-m", "tools.bench.engine_loop", "--json", "--steps", str(num_steps), "--sizes"]
    command += map(str, _LOOP_SIZES)
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=REPOSITORY, timeout=_LOOP_SECONDS
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["nothing printed"])[-1]
        return [_failed_loop(f"tools.bench.engine_loop: {reason[:200]}")]
    except subprocess.TimeoutExpired:
        return [_failed_loop(f"tools.bench.engine_loop took more than {_LOOP_SECONDS} s")]
    return loop_results(done.stdout)


def loop_results(document: str) -> list[Result]:
    """Reads the output of `tools.bench.engine_loop --json`."""
    report = json.loads(document)
    return [
        Result(
            f"engine loop, {size['num_running']} running",
            _LOOP_UNIT,
            False,
            Figure.of([size["gap"]["median"]]),
            note=f"the median of {size['num_steps']} decode steps; 95% of them within {size['gap']['p95']:.0f} us",
        )
        for size in report["sizes"]
    ]


def _failed_loop(reason: str) -> Result:
    return Result("engine loop", _LOOP_UNIT, False, Failure(reason))

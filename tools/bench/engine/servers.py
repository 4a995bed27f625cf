"""Rows beside throughput: start to ready, and the overhead of HTTP over the engine alone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.bench.engine.jobs import Job
from tools.bench.engine.peers import Model, Peer, driver_environment
from tools.bench.engine.process import EngineError, started
from tools.bench.engine.report import Cell, Failure, Figure, Result
from tools.load import trace_load
from tools.measure.served import ENGINE, free_port, seconds_to_ready, served_engine

OURS = "tools.bench.engine.drivers.ours"
_VOCAB_SIZE = 49152
_PEER_RUNS = 2


def ready(model: Model, peers: Mapping[Peer, Path], cpus: list[int], logs: Path, num_runs: int) -> Result:
    """Seconds until each server takes requests; `peers` with their virtual environments."""

    def ours() -> float:
        port = free_port()
        command = [str(ENGINE), "serve", str(model.folder), "--host=127.0.0.1", f"--port={port}", "--dtype=bfloat16"]
        return seconds_to_ready(command, f"http://127.0.0.1:{port}/ready", {}, logs / "ready-inflight.log")

    def of(peer: Peer, venv: Path, arguments: Callable[[Model, int], list[str]]) -> float:
        port = free_port()
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
    requests = [trace_load.Job(0.0, length, job.output_tokens) for length in job.prompt_tokens]
    with ExitStack() as stack:
        try:
            url = stack.enter_context(served_engine(logs / "http.log", *flags))

            def seconds() -> float:
                answered = asyncio.run(trace_load.run_load(url, requests, vocab_size=_VOCAB_SIZE))
                return max(each.last_token_at for each in answered)

            # On one CPU, so that what is measured is the server.
            stack.callback(os.sched_setaffinity, 0, cpus := os.sched_getaffinity(0))
            os.sched_setaffinity(0, {max(cpus)})
            seconds()
            return Figure.of([job.num_output_tokens / seconds() for _ in range(num_runs)])
        except RuntimeError as error:
            return Failure(f"over HTTP: {error}")
        except ExceptionGroup as group:
            return Failure(f"over HTTP: {group.exceptions[0]}")


def _figure(num_runs: int, measure: Callable[[], float]) -> Cell:
    try:
        return Figure.of([measure() for _ in range(num_runs)])
    except RuntimeError as error:
        return Failure(str(error))

"""Time from the start of `inflight-engine serve` to its first token, by phase, and from the end of a killed engine
process to the next token of a stream: medians of several runs. Then the wake from sleep, and what it frees.

    python -m tools.bench.startup [--runs N] [SERVE FLAGS]

Seconds on the clock say what a user waits for; seconds of CPU time also mean something while others use the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tools.measure.processes import family_cpu
from tools.measure.report import cpu_model
from tools.measure.served import MODEL, served_engine

GOAL_SECONDS = 3.0

# Run by a Python of its own, so that nothing is imported yet; prints the parts as JSON.
_ENGINE = f"""
import json, time
clocks = lambda: (time.perf_counter(), time.process_time())
begin = clocks()
import inflight_engine.engine_process
inflight_engine.engine_process.let_threads_sleep()
import torch
torch_imported = clocks()
from inflight_engine.execution import build
from inflight_settings.engine import EngineConfig
imported = clocks()
parts = []
def timed(function):
    def call(*args, **kwargs):
        start = clocks()
        result = function(*args, **kwargs)
        parts.append((start, clocks()))
        return result
    return call
build.load_model = timed(build.load_model)
build.build_runner(EngineConfig({MODEL!r}))
loaded = clocks()
(weights,) = parts
spans = {{
    "engine process: torch": (begin, torch_imported),
    "engine process: other imports": (torch_imported, imported),
    "engine process: weights": weights,
    "engine process: configuration, KV cache": (imported, loaded),
}}
seconds = {{name: [end - start for start, end in zip(*span)] for name, span in spans.items()}}
rest = "engine process: configuration, KV cache"
seconds[rest] = [all_ - part for all_, part in zip(seconds[rest], seconds["engine process: weights"])]
print(json.dumps(seconds))
"""

_API = f"""
import json, time
clocks = lambda: (time.perf_counter(), time.process_time())
begin = clocks()
import inflight_engine.cli, inflight_engine.server.run
imported = clocks()
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.tokens.tokenizer import load_tokenizer
load_tokenizer(resolve({MODEL!r}))
loaded = clocks()
spans = {{"API process: imports": (begin, imported), "API process: tokenizer": (imported, loaded)}}
print(json.dumps({{name: [end - start for start, end in zip(*span)] for name, span in spans.items()}}))
"""


@dataclass(frozen=True, slots=True)
class Seconds:
    """`wall`: on the clock. `cpu`: of all threads and processes, user and system."""

    wall: float
    cpu: float


def measure_start(flags: Sequence[str]) -> dict[str, Seconds]:
    """Measures a start: until the server is ready, then until it has answered its first request.

    Raises:
        RuntimeError: the server did not become ready.
    """
    cpu_before = _children_cpu()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, served_engine(Path(folder) / "engine.log", *flags) as url:
        ready = time.perf_counter()
        body = {"model": MODEL.rpartition("/")[2], "prompt": "The capital of France is", "max_tokens": 1}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            response.read()
        answered = time.perf_counter()
    used = _children_cpu() - cpu_before
    return {
        "ready": Seconds(ready - begin, used),
        "first answer": Seconds(answered - ready, 0.0),
        "process start to first token": Seconds(answered - begin, 0.0),
    }


RESTARTS = {
    "killed engine to next token": ("--spare-process", "off"),
    "killed engine to next token, spare": ("--spare-process", "on"),
    "killed engine to next token, spare, kept weights": ("--spare-process", "on", "--keep-weights", "on"),
}
"""Restarts that are measured, and their flags."""

_TOKENS = 64
_KILLED_AFTER = 5
"""Tokens of the stream, and how many of them come before the engine process is killed."""


def measure_restart(flags: Sequence[str]) -> Seconds:
    """Measures the longest pause of a stream whose engine process is killed. A spare has imported its modules before.

    Raises:
        RuntimeError: the server did not become ready.
    """
    body = {"model": MODEL.rpartition("/")[2], "prompt": "Once", "max_tokens": _TOKENS, "ignore_eos": True}
    cpu_before, others = _children_cpu(), _children(os.getpid())
    with tempfile.TemporaryDirectory() as folder, served_engine(Path(folder) / "engine.log", *flags) as url:
        (api,) = set(_children(os.getpid())).difference(others)
        engine, wanted = _children(api)[0], 1 + ("on" in flags)
        while sum("libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text() for pid in _children(api)) < wanted:
            time.sleep(0.1)
        _wait_still(api)
        data = json.dumps(body | {"stream": True}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
        times: list[float] = []
        with urllib.request.urlopen(request) as response:
            for line in response:
                if line.startswith(b"data:"):
                    times.append(time.perf_counter())
                    if len(times) == _KILLED_AFTER:
                        os.kill(engine, signal.SIGKILL)
    return Seconds(max(after - before for before, after in pairwise(times)), _children_cpu() - cpu_before)


def _wait_still(pid: int) -> None:
    """Returns once a process and those that it has started have used less than 1% of a core for a second.

    Raises:
        RuntimeError: they still use more after a minute.
    """
    before = family_cpu(pid)
    for _ in range(60):
        time.sleep(1)
        used = family_cpu(pid)
        if used - before < 0.01:
            return
        before = used
    raise RuntimeError("the engine and its spare process do not come to rest")


_FILLS, _FILL_TOKENS = 4, 1000
"""Prompts that fill the KV cache before the engine sleeps, and tokens of each."""
_WAKES = 11
_ADMIN_TOKEN = "bench"


@dataclass(frozen=True, slots=True)
class Sleep:
    """Medians of several sleeps of one engine.

    Attributes:
        awake, asleep: seconds that a request of one token takes.
        bytes_awake, bytes_asleep: resident memory of the engine process with a filled cache, and asleep.
    """

    awake: float
    asleep: float
    bytes_awake: int
    bytes_asleep: int


def measure_sleep(flags: Sequence[str], tries: int = _WAKES) -> Sleep:
    """Measures an answer of one token of an engine that sleeps, beside the same one awake.

    Raises:
        RuntimeError: the server did not become ready.
    """
    flags = [*flags, "--spare-process", "off"]
    token, others = {"INFLIGHT_ADMIN_TOKEN": _ADMIN_TOKEN}, _children(os.getpid())
    with (
        tempfile.TemporaryDirectory() as folder,
        served_engine(Path(folder) / "engine.log", *flags, environment=token) as url,
    ):
        (api,) = set(_children(os.getpid())).difference(others)
        engine = _children(api)[0]
        for number in range(_FILLS):
            _answer(url, [number, *range(1000, 1000 + _FILL_TOKENS)])
        resident, awake, asleep = [_resident(engine)], [], []
        for number in range(tries):
            prompt = [100 + number, *range(2000, 2004)]
            awake.append(_answer(url, prompt))
            request = urllib.request.Request(
                f"{url}/admin/sleep", method="POST", headers={"Authorization": f"Bearer {_ADMIN_TOKEN}"}
            )
            urllib.request.urlopen(request).close()
            resident.append(_resident(engine))
            asleep.append(_answer(url, prompt))
    return Sleep(statistics.median(awake), statistics.median(asleep), resident[0], resident[1])


def _answer(url: str, prompt: list[int]) -> float:
    """Returns the seconds that an answer of one token takes."""
    body = json.dumps({"model": MODEL.rpartition("/")[2], "prompt": prompt, "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    begin = time.perf_counter()
    urllib.request.urlopen(request).close()
    return time.perf_counter() - begin


def _resident(pid: int) -> int:
    """Returns the resident memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def _children(pid: int) -> list[int]:
    """Child processes of all threads, the oldest of each first."""
    return [
        int(each) for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()
    ]


def measure_parts() -> dict[str, Seconds]:
    """Measures the parts of both processes, each alone on the machine; in a start they run at the same time."""
    found: dict[str, Seconds] = {}
    for program in (_ENGINE, _API):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        parts: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
        found |= {name: Seconds(*seconds) for name, seconds in parts.items()}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How long the engine takes to be ready, and where that time goes.")
    parser.add_argument("--runs", type=int, default=5, help="starts, of which the median counts (default 5)")
    arguments, flags = parser.parse_known_args(argv)
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    measure_start(flags)  # brings files into the page cache
    runs = [
        measure_start(flags)
        | measure_parts()
        | {name: measure_restart([*flags, *more]) for name, more in RESTARTS.items()}
        for _ in range(arguments.runs)
    ]
    medians = {name: _median([run[name] for run in runs]) for name in runs[0]}
    load = os.getloadavg()[0]
    print(f"{cpu_model()}, {os.cpu_count()} CPUs, load {load:.1f}; median of {arguments.runs}; goal {GOAL_SECONDS:g} s")
    for name, seconds in medians.items():
        cpu = f"{seconds.cpu:6.2f} s of CPU" if seconds.cpu else ""
        print(f"{name:50} {seconds.wall:6.2f} s {cpu}".rstrip())
    sleep = measure_sleep(flags)
    print(f"{'one token, awake':50} {sleep.awake:6.3f} s")
    print(f"{'wake from sleep to one token':50} {sleep.asleep:6.3f} s")
    print(f"{'engine process, cache filled':50} {sleep.bytes_awake / 2**20:6.0f} MiB")
    print(f"{'engine process, asleep':50} {sleep.bytes_asleep / 2**20:6.0f} MiB")
    return 0


def _median(of: Sequence[Seconds]) -> Seconds:
    return Seconds(statistics.median(run.wall for run in of), statistics.median(run.cpu for run in of))


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())

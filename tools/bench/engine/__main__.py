"""The engine beside other engines, on the same model and requests, on this machine's CPU.

The model is the built-in SmolLM2-135M-Instruct in bfloat16, the requests are random token ids with the end-of-sequence
token ignored. Each peer is installed once into an environment of its own in the cache folder; one that cannot be, or
that fails, is in the table with the reason. Ours runs each row on all cores and on one. Run it on a quiet machine: all
of it takes about 15 minutes on two cores, without peers (`--peers none`) about 5.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tools.bench.engine import peers as known_peers
from tools.bench.engine import rows
from tools.bench.engine.compare import Contender, run_rows
from tools.bench.engine.peers import InstallError, Model, Peer, driver_environment, exported, installed
from tools.bench.engine.process import EngineError, EngineProcess, started
from tools.bench.engine.report import Failure, Report, Result, shares, text
from tools.bench.engine.roofline import Ceilings, Costs, limit
from tools.bench.engine.rows import Row
from tools.bench.engine.servers import OURS, http, ready
from tools.localcluster.layout import REPOSITORY, current
from tools.measure.report import cpu_model, say, write_json
from tools.signals import exit_on_signals

_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "asimd", "bf16")
_WEIGHT_BYTES = {"none": 2.0, "int8": 1.0, "int4": 0.5}
"""Bytes of a parameter, without scales: a lower bound of the bytes that are read."""
_KV_CACHE_BYTES = 1 << 30
_QUANTIZED = "its products are of 8-bit integers, which may be faster than the limit's"
_SETTLE_SECONDS = 0.5
"""Pause before a measurement: OpenMP's threads spin for 0.2 s."""
_READY_RUNS = 5
_HTTP_RUNS = 3
_ONE_CORE_RUNS = 2
"""Runs of each row on one core, where it takes twice the time."""


def machine_lines(cpus: int, ceilings: Ceilings) -> tuple[str, ...]:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{time.strftime('%Y-%m-%d')}, {cpu_model()}, {cpus} cores ({' '.join(f for f in _FEATURES if f in flags)}), "
        f"{memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f} at the start",
        f"measured ceilings: {ceilings.bytes_per_second / 1e9:.1f} GB/s read, "
        f"{ceilings.flops_per_second / 1e9:.0f} GFLOP/s in matrix products",
    )


def measure_ceilings(threads: int) -> Ceilings:
    """Raises subprocess.CalledProcessError."""
    command = [sys.executable, "-m", "tools.bench.engine.drivers.ceilings", str(threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    return Ceilings(**json.loads(done.stdout))


def our_settings(model: Model, quantization: str, num_threads: int | None = None) -> dict[str, Any]:
    """Fields of `EngineConfig`; `num_threads`: None for all cores."""
    return {
        "model": str(model.folder),
        "dtype": "bfloat16",
        "device": "cpu",
        "quantization": quantization,
        "prefix_caching": False,
        "kv_cache_memory": _KV_CACHE_BYTES,
        "num_threads": num_threads,
    }


class Bench:
    """A run of the benchmark."""

    def __init__(self, flags: argparse.Namespace, wanted: tuple[Peer, ...], logs: Path) -> None:
        self._flags = flags
        self._wanted = wanted
        self._logs = logs
        self._cpus = sorted(os.sched_getaffinity(0))
        self._cache = current().root / "bench"
        self._runs_at_most = 1 if flags.quick else 100
        self._engines: list[str] = []
        self._venvs: dict[Peer, Path] = {}
        self._failed_installs: dict[Peer, Failure] = {}

    def run(self) -> Report:
        model = exported(self._cache, say)
        for peer in self._wanted:
            try:
                self._venvs[peer] = installed(peer, self._cache, say)
            except InstallError as error:
                self._failed_installs[peer] = Failure(f"{peer.title}: {error}")
        say("measuring the machine's ceilings")
        ceilings = measure_ceilings(len(self._cpus))
        machine = machine_lines(len(self._cpus), ceilings)
        only = self._flags.only or rows.NAMES
        results: list[Result] = []
        chosen = [row for row in rows.ROWS if row.name in only]
        if chosen:
            results += self._throughput(chosen, model, ceilings)
        if rows.READY in only:
            say("start to ready")
            result = ready(model, self._venvs, self._cpus, self._logs, min(_READY_RUNS, self._runs_at_most))
            failed = {peer.title: failure for peer, failure in self._failed_installs.items() if peer.server}
            result.peers.update(failed)
            results.append(result)
        if rows.HTTP in only:
            say("over HTTP")
            results += http(
                our_settings(model, "none"), rows.ROWS[0].job, self._logs, min(_HTTP_RUNS, self._runs_at_most)
            )
        return Report(machine, tuple(self._engines), tuple(peer.title for peer in self._wanted), tuple(results))

    def _throughput(self, chosen: list[Row], model: Model, ceilings: Ceilings) -> list[Result]:
        quantizations = ["none", *self._flags.quantization]
        with ExitStack() as stack:
            ours = {quantization: self._start_ours(stack, model, quantization, None) for quantization in quantizations}
            on_one_core: dict[str, Contender] = {}
            if len(self._cpus) > 1:
                on_one_core = {each: self._start_ours(stack, model, each, 1) for each in quantizations}
            theirs = {peer.name: self._start_peer(stack, peer, model) for peer in self._wanted}
            run_rows(
                chosen,
                [*ours.values(), *on_one_core.values()],
                theirs,
                say,
                runs_at_most=self._runs_at_most,
                settle_seconds=_SETTLE_SECONDS,
            )
        results = {
            (row.name, quantization): self._result(
                row, quantization, ours[quantization], on_one_core.get(quantization), theirs, model, ceilings
            )
            for row in chosen
            for quantization in quantizations
        }
        for quantization in quantizations:
            free, bound = (results.get((name, quantization)) for name in (rows.ROWS[0].name, rows.STRUCTURED))
            if free is not None and bound is not None:
                results[rows.STRUCTURED, quantization] = replace(
                    bound, note="; ".join(filter(None, (bound.note, shares(bound, free))))
                )
        return list(results.values())

    def _start_ours(self, stack: ExitStack, model: Model, quantization: str, num_threads: int | None) -> Contender:
        settings = our_settings(model, quantization, num_threads)
        name = _name(quantization, num_threads)
        contender = self._start(stack, name, Path(sys.executable), OURS, settings, {})
        if num_threads is not None:
            contender.runs_at_most = _ONE_CORE_RUNS
        return contender

    def _start_peer(self, stack: ExitStack, peer: Peer, model: Model) -> Contender:
        if peer in self._failed_installs:
            return Contender(peer.title, None, failure=self._failed_installs[peer])
        venv = self._venvs[peer]
        return self._start(
            stack,
            peer.title,
            venv / "bin" / "python",
            peer.module,
            peer.settings(model, len(self._cpus)),
            dict(driver_environment(peer, venv, self._cpus)),
        )

    def _start(
        self,
        stack: ExitStack,
        name: str,
        python: Path,
        module: str,
        settings: dict[str, Any],
        environment: dict[str, str],
    ) -> Contender:
        say(f"starting {name}")
        log = self._logs / f"{name.replace(' ', '-')}.log"
        try:
            engine: EngineProcess = stack.enter_context(started(python, module, settings, environment, log))
        except EngineError as error:
            return Contender(name, None, failure=Failure(f"{name}: {error}"))
        self._engines.append(engine.engine)
        return Contender(name, engine)

    def _result(
        self,
        row: Row,
        quantization: str,
        ours: Contender,
        on_one_core: Contender | None,
        theirs: dict[str, Contender],
        model: Model,
        ceilings: Ceilings,
    ) -> Result:
        least = limit(row.job, Costs.of_folder(model.folder, _WEIGHT_BYTES[quantization]), ceilings)
        return Result(
            title=row.title if quantization == "none" else f"{row.title}, {quantization} weights",
            unit=f"{row.counted} tokens/s",
            more_is_better=True,
            ours=ours.cell(row),
            one_core=None if on_one_core is None else on_one_core.cell(row),
            peers={peer.title: theirs[peer.name].cell(row) for peer in self._wanted if peer.name in row.peers},
            limit=row.tokens_per_second(least.seconds),
            limit_by=least.by,
            note="" if quantization == "none" else _QUANTIZED,
        )


def _name(quantization: str, num_threads: int | None) -> str:
    name = "inflight" if quantization == "none" else f"inflight {quantization}"
    return name if num_threads is None else f"{name} on one core"


def parse() -> tuple[argparse.Namespace, tuple[Peer, ...]]:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.engine",
        description=__doc__,
        epilog="rows: " + "; ".join(
            [*(f"{row.name} ({row.title})" for row in rows.ROWS), "ready (start to ready)",
             "http (short over HTTP against offline, one engine thread)"]
        ) + ". Example: python -m tools.bench.engine --only decode-1 prefill --peers vllm --json figures.json",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", choices=rows.NAMES, metavar="ROW", help="measure these rows (default: all)"
    )
    parser.add_argument(
        "--peers", default=",".join(known_peers.NAMES), metavar="LIST",
        help="with commas, or none (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--quantization", nargs="+", choices=["int8", "int4"], default=[],
        help="measure ours with quantized weights, too, in rows of their own",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="one run of everything: to see that it works, not to quote"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    flags = parser.parse_args()
    try:
        return flags, known_peers.named(flags.peers)
    except ValueError as error:
        parser.error(f"argument --peers: {error}")


def main() -> int:
    """Exit 0 when every figure that was asked for is there, 1 when one of ours is missing."""
    flags, wanted = parse()
    exit_on_signals()  # and the engines end with it
    began = time.monotonic()
    logs = Path(tempfile.mkdtemp(prefix="inflight-bench-"))
    report = Bench(flags, wanted, logs).run()
    print(text(report))
    write_json(flags.json, asdict(report))
    say(f"{time.monotonic() - began:.0f} s; the engines' logs are in {logs}")
    figures = [figure for result in report.results for figure in (result.ours, result.one_core)]
    return int(any(isinstance(figure, Failure) for figure in figures))


if __name__ == "__main__":
    sys.exit(main())

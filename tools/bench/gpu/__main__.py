"""Checks and measurements on a GPU, stage by stage: correctness, then models of two shapes with random weights."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tools.bench.gpu import report
from tools.bench.gpu.correctness import Checks
from tools.bench.gpu.part import ENGINES, SIZES
from tools.bench.gpu.reference import FULL, SMALL
from tools.measure.report import markdown, table, write_json

REPOSITORY = Path(__file__).resolve().parents[3]
STAGE_SECONDS = 580
"""For all engines of a stage: it is within ten minutes."""
SECONDS = {"inflight": 240, "vllm": 170}
"""Of these at most for one engine; transformers, the slowest, comes last and has what the others left."""


def machine(device: str) -> str:
    """What the figures come from, and when."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return f"{time.strftime('%Y-%m-%d')}, {name}, torch {torch.__version__}, Python {platform.python_version()}"


def correctness(device: str, size: str, folder: Path) -> tuple[list[list[str]], Any, bool]:
    """Rows for the report, the same as data, and whether nothing was wrong."""
    checks = []
    for check in Checks(folder, device, SMALL if size == "small" else FULL).run():
        print(*table(report.check_rows([check])[1:]), flush=True)
        checks.append(check)
    return (
        report.check_rows(checks),
        [asdict(check) for check in checks],
        all(check.ok is not False for check in checks),
    )


def speed(shape: str, device: str, size: str, folder: Path) -> tuple[list[list[str]], Any, bool]:
    """As `correctness`; false where this engine has failed."""
    results: dict[str, Any] = {}
    until = time.monotonic() + STAGE_SECONDS
    for engine in ENGINES:
        print(f"{shape}: {engine}", flush=True)
        seconds = min(SECONDS.get(engine, STAGE_SECONDS), until - time.monotonic())
        results[engine] = _part(engine, shape, device, size, folder, seconds)
    return report.speed_rows(shape, results), results, "continuous" in results["inflight"]


def _part(engine: str, shape: str, device: str, size: str, folder: Path, seconds: float) -> dict[str, Any]:
    file = folder / f"{engine}-{shape}.json"
    arguments = [engine, shape, device, size, str(folder / f"{engine}-{shape}"), str(file)]
    command = [sys.executable, "-m", "tools.bench.gpu.part", *arguments]
    try:
        done = subprocess.run(command, check=False, cwd=REPOSITORY, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"failed": f"it took more than {seconds:.0f} s"}
    if not file.exists():
        return {"failed": f"its process ended with exit code {done.returncode}"}
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when every check holds and this engine was measured, else 1."""
    parser = argparse.ArgumentParser(prog="tools/bench/gpu.sh", description=__doc__)
    parser.add_argument("stage", choices=["correctness", "qwen", "llama", "tiny", "all"], help="all: but tiny")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: %(default)s")
    parser.add_argument("--size", choices=list(SIZES), default="full", help="small: to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results (%(default)s)")
    flags = parser.parse_args(arguments)
    if flags.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --size small runs the same code on the CPU")
    flags.out.mkdir(parents=True, exist_ok=True)
    good, tables = True, []
    for stage in ("correctness", "qwen", "llama") if flags.stage == "all" else (flags.stage,):
        with tempfile.TemporaryDirectory(prefix="inflight-gpu-") as name:
            folder = Path(name)
            if stage == "correctness":
                rows, data, held = correctness(flags.device, flags.size, folder)
            else:
                rows, data, held = speed(stage, flags.device, flags.size, folder)
        good &= held
        tables.append(rows)
        where = machine(flags.device)
        write_json(flags.out / f"{stage}.json", {"machine": where, "results": data})
        (flags.out / f"{stage}.md").write_text("\n".join([where, "", *markdown(rows), ""]))
    print(f"\n{machine(flags.device)}")
    for rows in tables:
        print("\n".join(["", *table(rows)]))
    print(f"\n{'Everything held.' if good else 'NOT everything held.'} Results are in {flags.out}.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

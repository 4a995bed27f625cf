"""Checks and measurements on a GPU, stage by stage, each in at most ten minutes.

first        in eight minutes, item by item, simplest first, each in a process of its own: ceilings, kernels alone,
             tokens by eager steps, graphs and look-ahead, a memory checker, profiles, a killed engine process, a
             prefill without memory; first.jsonl has each result as soon as it is known
correctness  small random models against transformers, by every way to compute them
qwen, llama  speed with the shapes of Qwen3-0.6B and Llama-3-8B and random weights, beside vLLM
tiles        in two minutes, numbers that the kernels' code fixes (tiles, warps, stages, splits), each beside others;
             tiles.jsonl has each time as soon as it is known; not part of `all`
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tools.bench.gpu import first, report
from tools.bench.gpu.correctness import Checks
from tools.bench.gpu.part import isolated
from tools.bench.gpu.reference import SCALES
from tools.bench.gpu.speed import SIZES
from tools.measure.report import markdown, table, write_json

ENGINES = {"inflight": "speed.measure", "inflight over HTTP": "server.served", "vllm": "peers.vllm"}
_STAGES = ("first", "correctness", "qwen", "llama")
STAGE_SECONDS = 580
"""For all engines of a stage: it is within ten minutes."""
TILE_SECONDS = 120
"""Time after which a sweep's process is ended, if it has not ended by itself."""
OUR_SECONDS = 240
"""Largest share of these for this engine; vLLM has the rest."""


def machine(device: str) -> str:
    """Describe the source of the figures: date, device and versions."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return f"{time.strftime('%Y-%m-%d')}, {name}, torch {torch.__version__}, Python {platform.python_version()}"


def correctness(device: str, size: str, folder: Path) -> tuple[list[list[str]], Any, bool]:
    """Run all checks; returns rows for the report, the same as data, and whether nothing was wrong."""
    checks = []
    for check in Checks(folder, device, SCALES[size]).run():
        print(*table(report.check_rows([check])[1:]), flush=True)
        checks.append(check)
    return (
        report.check_rows(checks),
        [asdict(check) for check in checks],
        all(check.ok is not False for check in checks),
    )


def speed(shape: str, device: str, size: str, folder: Path) -> tuple[list[list[str]], Any, bool]:
    """Measure all engines; returns as `correctness`, false where this engine has failed."""
    results: dict[str, Any] = {}
    until = time.monotonic() + STAGE_SECONDS
    for engine in ENGINES:
        print(f"{shape}: {engine}", flush=True)
        seconds = OUR_SECONDS if engine == "inflight" else until - time.monotonic()
        results[engine] = isolated((ENGINES[engine], shape, device, size), folder / engine, seconds)
    return report.speed_rows(shape, results), results, "continuous" in results["inflight"]


def tiles(device: str, size: str, folder: Path, lines: Path) -> tuple[list[list[str]], Any, bool]:
    """Time the kernels' alternatives, each a line in `lines`; returns as `correctness`, false where they were not all
    timed."""
    lines.unlink(missing_ok=True)
    result = isolated(("tiles.sweep", str(lines.absolute()), device, size), folder / "tiles", TILE_SECONDS)
    return [*report.tile_rows(lines), [*report.item_row("all", result), ""]], result, "failed" not in result


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 when every check holds and this engine was measured, else 1."""
    parser = argparse.ArgumentParser(
        prog="tools/bench/gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "stage", choices=[*_STAGES, "tiles", "tiny", "all"], help="tiny: a test's; all: but tiny and tiles"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: %(default)s")
    parser.add_argument("--size", choices=list(SIZES), default="full", help="small: to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results (%(default)s)")
    flags = parser.parse_args(arguments)
    if flags.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --size small runs the same code on the CPU")
    flags.out.mkdir(parents=True, exist_ok=True)
    good, tables = True, []
    for stage in _STAGES if flags.stage == "all" else (flags.stage,):
        with tempfile.TemporaryDirectory(prefix="inflight-gpu-") as name:
            folder = Path(name)
            if stage == "first":
                lines = flags.out / "first.jsonl"
                rows, data, held = first.run(
                    flags.device, flags.size, folder, lines, lambda line: print(line, flush=True)
                )
            elif stage == "correctness":
                rows, data, held = correctness(flags.device, flags.size, folder)
            elif stage == "tiles":
                rows, data, held = tiles(flags.device, flags.size, folder, flags.out / "tiles.jsonl")
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

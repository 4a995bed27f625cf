"""The first minutes on a GPU: item by item, simplest first, each in a process of its own with its own time limit."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tools.bench.gpu import report
from tools.bench.gpu.part import isolated

_CHECKER = ("compute-sanitizer", "--tool", "memcheck")


@dataclass(frozen=True, slots=True)
class Item:
    """A measurement.

    Attributes:
        seconds: at most; all together are less than eight minutes.
        function, argument: as for `part`.
        under: as for `part.isolated`.
    """

    name: str
    seconds: int
    function: str
    argument: str = ""
    under: tuple[str, ...] = ()


ITEMS = (
    Item("machine", 25, "first.machine"),
    Item("kernels, tiny", 45, "kernels.check", "tiny"),
    Item("kernels, real sizes", 65, "kernels.check", "real"),
    Item("tiny model, eager", 25, "speed.eager", "tiny"),
    Item("tokens: torch's attention, eager", 25, "correctness.way", "torch-sdpa"),
    Item("tokens: kernels, eager", 40, "correctness.way", "eager"),
    Item("tokens: graphs", 25, "correctness.way", "graphs"),
    Item("tokens: look-ahead", 25, "correctness.way", "look-ahead"),
    Item("tokens: mixed steps", 25, "correctness.way", "mixed"),
    Item("memory checker", 50, "speed.eager", "tiny", (*_CHECKER, "--error-exitcode", "86")),
    Item("profile of Qwen3-0.6B", 40, "speed.profiles", "qwen"),
    Item("engine process killed", 60, "server.killed"),
    Item("out of memory", 25, "speed.out_of_memory", "qwen"),
)
"""An item compiles kernels that later ones find in Triton's cache."""


def run(
    device: str, size: str, folder: Path, results: Path, say: Callable[[str], None], items: Sequence[Item] = ITEMS
) -> tuple[list[list[str]], Any, bool]:
    """Run all items; each result is a line of JSON in `results` before the next item begins.

    Returns:
        Rows for the report, the results by name, and whether none is wrong or failed.
    """
    found: dict[str, dict[str, Any]] = {}
    results.unlink(missing_ok=True)
    for number, item in enumerate(items):
        started = time.monotonic()
        place = folder / str(number)
        result = isolated((item.function, item.argument, device, size), place, item.seconds, item.under)
        found[item.name] = result
        with results.open("a") as file:
            file.write(json.dumps({"item": item.name, "seconds": round(time.monotonic() - started, 1)} | result) + "\n")
        say(" | ".join(report.item_row(item.name, result)))
    held = all(result.get("ok", "failed" not in result) for result in found.values())
    return [["item", "", ""], *(report.item_row(name, result) for name, result in found.items())], found, held


def machine(_argument: str, device: str, _size: str, _folder: Path) -> dict[str, Any]:
    """Versions, and the ceilings that torch reaches."""
    from tools.bench.gpu.speed import ceilings

    found = ceilings(device)
    figures = {
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "bytes_per_second": found.bytes_per_second,
    }
    figures |= {"flops_per_second": found.flops_per_second}
    if device == "cuda":
        import triton

        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]
        gpu = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        figures |= {"triton": triton.__version__, "gpu": gpu}
    return figures

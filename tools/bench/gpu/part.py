"""Measurements in processes of their own, so that a fault or a hang costs nothing else and memory is free for the
next: `python -m tools.bench.gpu.part FUNCTION ARGUMENT DEVICE SIZE FOLDER FILE`. FUNCTION is a module of this package
and its function; FILE gets the figures as JSON, or the reason why there are none."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.bench.gpu.not_here import NotHereError
from tools.measure.served import kill, process

_REASON_CHARACTERS = 300


def isolated(arguments: Sequence[str], folder: Path, seconds: float, under: Sequence[str] = ()) -> dict[str, Any]:
    """Run a part, and end its process and all that it started after some seconds.

    Args:
        arguments: FUNCTION, ARGUMENT, DEVICE and SIZE.
        folder: for this part alone.
        under: program that runs it, and its flags.

    Returns:
        As `run`; `failed` too where the process crashed or took too long.
    """
    if under and shutil.which(under[0]) is None:
        return {"missing": f"{under[0]} is not installed"}
    folder.mkdir(parents=True)
    file = folder / "result.json"
    command = [*under, sys.executable, "-m", "tools.bench.gpu.part", *arguments, str(folder / "files"), str(file)]
    with process(None, command) as running:
        try:
            code = running.wait(seconds)
        except subprocess.TimeoutExpired:
            kill(running)
            return {"failed": f"it took more than {seconds:.0f} s"}
    if code or not file.exists():
        return {"failed": f"its process ended with exit code {code}"}
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def run(function: str, argument: str, device: str, size: str, folder: Path) -> dict[str, Any]:
    """Figures; or `missing` where this machine lacks what is measured; or `failed`."""
    try:
        module, _, name = function.rpartition(".")
        part = getattr(importlib.import_module(f"tools.bench.gpu.{module}"), name)
        figures: dict[str, Any] = part(argument, device, size, folder)
    except NotHereError as error:
        return {"missing": str(error)[:_REASON_CHARACTERS]}
    except Exception as error:  # it is in the report
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}".replace("\n", " ")[:_REASON_CHARACTERS]}
    return figures


def main() -> None:
    function, argument, device, size, folder, file = sys.argv[1:]
    result = run(function, argument, device, size, Path(folder))
    Path(file).write_text(json.dumps(result))


if __name__ == "__main__":
    main()

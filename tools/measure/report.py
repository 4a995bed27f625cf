"""Figures of a measurement and their output: percentiles, the machine, progress, tables, and JSON."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")

Rows = Sequence[Sequence[str]]
"""Cells, the header first."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values, 0 to 1, do not exceed (nearest rank).

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a percentile needs at least one value")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def rounded_percentile(values: Sequence[float], share: float) -> float | None:
    """Returns the percentile to three decimals; None without values."""
    return round(percentile(values, share), 3) if values else None


def cpu_model() -> str:
    """The processor's name, or its architecture where the system has no name."""
    for line in _CPUINFO.read_text().splitlines() if _CPUINFO.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def say(line: str) -> None:
    """Print progress to standard error, so that standard output has the report alone."""
    print(line, file=sys.stderr, flush=True)


def table(rows: Rows, align: str = "<") -> list[str]:
    """Lines for a terminal. Args: align: `<` or `>` for each column; the last one is for all further columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = align.ljust(len(widths), align[-1])
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]


def markdown(rows: Rows) -> list[str]:
    """Lines of a Markdown table."""
    header, *others = rows
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *others)]


def write_json(file: Path | None, figures: Any) -> None:
    """Write figures where a file was asked for."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")

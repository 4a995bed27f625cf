"""Output of a measurement: progress, tables, and figures as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Sequence[str]]
"""Cells, the header first."""


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

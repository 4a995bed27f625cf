"""CPU time and memory of processes, with those they started, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> Iterable[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its living children."""
    total = 0
    for each in _family(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def memory_mib(pid: int) -> float:
    """Proportional set size of a process and its living children."""
    total = 0
    for each in _family(pid):
        rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024

"""Description of the machine on which a figure was measured."""

from __future__ import annotations

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def cpu_model() -> str:
    """The processor's name, or its architecture where the system has no name."""
    for line in _CPUINFO.read_text().splitlines() if _CPUINFO.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()

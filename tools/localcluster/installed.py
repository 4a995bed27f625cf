"""Programs from the Python environment that runs this, or from PATH."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tools.localcluster.errors import ClusterError


def installed(name: str) -> str:
    """Path of a program. Raises ClusterError where there is none."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if not path:
        raise ClusterError(f"{name} is missing: install this project's `dev` extra, or {name} itself")
    return path

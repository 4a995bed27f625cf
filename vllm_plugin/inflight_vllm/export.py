"""Copies the plugin, with the shared packages that it imports, into a folder for PYTHONPATH."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

PACKAGES = (
    "inflight_vllm", "inflight_contract", "inflight_cost", "inflight_fit", "inflight_policies", "inflight_settings",
)  # fmt: skip


def export(dest: Path) -> None:
    """Copy the plugin into `dest`, which is made where it is not there; what it has under the same names is replaced.

    Raises:
        OSError: `dest` cannot be written.
    """
    dest.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise ModuleNotFoundError(f"the package {package} is not installed", name=package)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(found.origin).parent, dest / package, dirs_exist_ok=True, ignore=ignored)

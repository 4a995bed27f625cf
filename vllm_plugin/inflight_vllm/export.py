"""Copies the plugin, with the packages that it needs and vLLM's image lacks, into a folder for PYTHONPATH."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

PACKAGES = (
    "inflight_vllm",
    "inflight_cost",
    "inflight_fit",
    "inflight_settings",
    "inflight_base/__init__.py",
    "inflight_base/manifest",
    "inflight_base/signing.py",
)
"""Packages and files, relative to the folder that has their package."""


def export(dest: Path) -> None:
    """Copy the plugin into `dest`, which is made where it is not there; what it has under the same names is replaced.

    Raises:
        OSError: `dest` cannot be written.
    """
    dest.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        source, target = _root(name.partition("/")[0]) / name, dest / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)


def _root(package: str) -> Path:
    """Return the folder that has the package, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the package {package} is not installed", name=package)
    return Path(found.origin).parent.parent

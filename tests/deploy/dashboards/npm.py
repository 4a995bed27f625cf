"""Packages of npm, as a package-lock.json pins them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path

from tools.localcluster import ClusterError, packages
from tools.localcluster.files import write_whole

_LINES_SHOWN = 15


def install(folder: Path) -> Path:
    """Install the packages of `folder`, where its package-lock.json changed; their folder. One process at a time.

    Raises:
        ClusterError: npm is missing, or it failed; the message has its lines.
    """
    modules = folder / "node_modules"
    stamp, digest = modules / ".installed", hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != digest:
            npm(folder, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")
            write_whole(stamp, digest)
    finally:
        os.close(opened)
    return modules


def npm(folder: Path, *arguments: str) -> None:
    """Run npm in `folder`. Raises ClusterError."""
    done = subprocess.run(
        [packages.require("npm"), *arguments],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"`npm {' '.join(arguments)}` failed in {folder}:\n{shown(done.stdout + done.stderr)}")


def shown(said: str) -> str:
    """The first lines of a program's output, indented."""
    return "\n".join(f"  {line[:300]}" for line in said.strip().splitlines()[:_LINES_SHOWN])

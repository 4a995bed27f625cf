"""Packages of npm, as a package-lock.json pins them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.localcluster import ClusterError, packages
from tools.localcluster.files import write_whole

_LINES_SHOWN = 15


def install(folder: Path) -> Path:
    """Install the packages of `folder`, where its package-lock.json changed; their folder.

    Raises:
        ClusterError: npm is missing, or it failed; the message has its lines.
    """
    modules, lock = folder / "node_modules", folder / "package-lock.json"
    with unless_done(folder, modules / ".installed", [lock]) as todo:
        if todo:
            # Peers are not installed: Grafana's packages name some in ranges that npm cannot satisfy together.
            options = ("--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund", "--no-update-notifier")
            npm(folder, "ci", *options)
    return modules


@contextmanager
def unless_done(folder: Path, stamp: Path, files: Sequence[Path]) -> Iterator[bool]:
    """True where `stamp` was written for other contents of `files`; writes it when the block succeeds.

    One process at a time does this in `folder`.
    """
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
        todo = not stamp.exists() or stamp.read_text() != digest
        yield todo
        if todo:
            write_whole(stamp, digest)
    finally:
        os.close(opened)


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

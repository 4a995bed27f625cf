"""Locks between processes: two calls of the tool at the same time do not meet."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.localcluster.progress import Progress


@contextmanager
def exclusive(path: Path, task: str, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path`; where another process holds it, say so with `task` and wait.

    The kernel drops the lock when the holder dies, so a killed holder leaves nothing to clean.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            progress(f"{task} is already being done by process {holder}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Say with the lock file `path` that something is in use; several may say so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def unless_in_use(path: Path) -> Iterator[bool]:
    """Yields whether no process holds `path` by `in_use`; one that begins to waits until the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True

"""Control groups of pods that were not stopped: found, their processes ended, removed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.localcluster.process import kill_all

HIERARCHY = Path("/sys/fs/cgroup")
BUILD_CGROUP = "inflight-build"
NAMES = ("kubepods", BUILD_CGROUP)
"""Groups below the root that the kubelet makes for pods and containerd for build steps."""


def own_groups(hierarchy: Path = HIERARCHY) -> list[Path]:
    """The top groups of pods and build steps: one a controller in cgroup v1, one in all in v2."""
    if not hierarchy.is_dir():
        return []
    tops = [hierarchy, *(path for path in sorted(hierarchy.iterdir()) if path.is_dir() and not path.is_symlink())]
    return [top / name for top in tops for name in NAMES if (top / name / "cgroup.procs").exists()]


def processes_in(groups: Iterable[Path]) -> set[int]:
    """Pids of all processes in `groups` and below."""
    pids: set[int] = set()
    for folder in folders_of(groups):
        try:
            pids.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        except OSError:
            continue  # the group went away while it was read
    return pids


def folders_of(groups: Iterable[Path]) -> Iterator[Path]:
    """Yield `groups` and all groups below them, without those that go away meanwhile, for which `rglob` raises."""
    for group in groups:
        for folder, _, _ in os.walk(group):
            yield Path(folder)


def remove() -> None:
    """Kill what is left in the pods' groups and remove them."""
    groups = own_groups()
    kill_all("processes of old pods", lambda: processes_in(groups))
    for folder in sorted(folders_of(groups), reverse=True):
        _rmdir(folder)


def _rmdir(folder: Path) -> None:
    for _ in range(50):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)  # busy until the kernel has reaped the last process
    folder.rmdir()

"""CPUs and memory that this process may use, by its cgroup. No torch."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60
"""Bytes from which a memory limit means none: cgroup v1 writes a number near 2^63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class Resources:
    """CPUs and memory that this process can use.

    Attributes:
        cpus: threads that can run at once, at least 1.
        memory: bytes that can still be taken.
        memory_limited: a cgroup's limit leaves less than the machine has available.
    """

    cpus: int
    memory: int
    memory_limited: bool


def read_resources(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Resources:
    """Read the limits that hold for this process.

    CPUs are the smaller of the affinity mask and the cgroup's quota, rounded down: with more threads than quota the
    kernel stops all of them for the rest of each period. Memory is the smaller of what the machine has available and
    what the cgroup's limit leaves (page cache that can be dropped counts as free). Both cgroup versions are read, and
    every parent's limit counts.

    Args:
        proc, cgroup: where these file systems are mounted.
    """
    folders = _cgroup_folders(proc, cgroup)
    cpus = min([float(len(os.sched_getaffinity(0))), *map(_cpu_quota, folders)])
    machine, limited = _meminfo_available(proc), min(map(_memory_left, folders), default=_UNLIMITED)
    return Resources(max(1, math.floor(cpus)), max(0, min(machine, limited)), limited < machine)


def choose_num_threads(asked: int | None, cpus: int) -> int:
    """Threads that compute: as many as configured, by default one for each CPU. With more than four, one is left to the
    API process: a step waits for its slowest thread, and a thread that shares its CPU is slow.

    Raises:
        ValueError: there are not so many CPUs.
    """
    if asked is None:
        return cpus if cpus <= 4 else cpus - 1
    if not 1 <= asked <= cpus:
        raise ValueError(f"num_threads must be between 1 and {cpus}, the CPUs that this process may use, not {asked}")
    return asked


def _cgroup_folders(proc: Path, cgroup: Path) -> list[Path]:
    """This process's cgroups and all above them. Lines of /proc/self/cgroup are `id:controllers:path`, with no
    controllers in version 2. Inside a container the path may be the host's and not be there: then the root is it."""
    folders: list[Path] = []
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        wanted = {"", "memory", "cpu"} & set(controllers.split(","))
        for root in (cgroup / controller if controller else cgroup for controller in sorted(wanted)):
            folder = root / path.lstrip("/")
            while folder != root:
                folders.append(folder)
                folder = folder.parent
            folders.append(root)
    return list(dict.fromkeys(folders))


def _cpu_quota(folder: Path) -> float:
    version2 = _read(folder / "cpu.max").split()
    if len(version2) == 2 and version2[0] != "max":
        return int(version2[0]) / int(version2[1])
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        return int(quota) / int(period)
    return math.inf


def _memory_left(folder: Path) -> int:
    for limit_name, usage_name, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _read(folder / limit_name), _read(folder / usage_name)
        if limit.isdigit() and usage.isdigit() and int(limit) < _UNLIMITED:
            statistics = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
            return int(limit) - int(usage) + int(statistics.get(cache_key, 0))
    return _UNLIMITED


def _meminfo_available(proc: Path) -> int:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # not this cgroup version, or the controller is off
        return ""

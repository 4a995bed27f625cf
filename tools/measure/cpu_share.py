"""A bound on the CPU time of processes, by a control group of their own: replicas that share a machine are then as
independent of each other as on machines of their own.

Source: Linux, Documentation/scheduler/sched-bwc.rst (version 1) and admin-guide/cgroup-v2.rst (`cpu.max`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HIERARCHY = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""Period, which is short beside a step of an engine: with the usual 100 ms a step would wait for the next period."""


@dataclass(frozen=True, slots=True)
class CpuGroup:
    """A control group. Attributes: folder: of the controller `cpu`. unified: version 2."""

    folder: Path
    unified: bool

    def join(self, pid: int) -> None:
        """Move a process, and all that it will start, into the group."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def limit(self, cores: float) -> None:
        """CPU time that the processes get together, in cores."""
        quota = str(int(cores * PERIOD_US))
        if self.unified:
            (self.folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(quota)


@contextmanager
def cpu_group(name: str, hierarchy: Path = HIERARCHY) -> Iterator[CpuGroup]:
    """A group without a limit; it is removed with the block, when its processes have ended.

    Raises:
        RuntimeError: there is none to be had.
    """
    unified = not (hierarchy / "cpu" / "cpu.cfs_quota_us").exists()
    folder = (hierarchy if unified else hierarchy / "cpu") / name
    try:
        if unified:
            (hierarchy / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RuntimeError(f"no control group for a share of the CPU, which needs root: {error}") from error
    try:
        yield CpuGroup(folder, unified)
    finally:
        folder.rmdir()

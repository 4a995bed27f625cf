"""Use of CPU and memory by the processes of the gateway, from /proc."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.measure.processes import family, memory


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Seconds of all threads of a process. Attributes: ran: on a core. waited: ready to run, for a core."""

    ran: float
    waited: float

    def __add__(self, other: Scheduled) -> Scheduled:
        return Scheduled(self.ran + other.ran, self.waited + other.waited)

    def __sub__(self, before: Scheduled) -> Scheduled:
        return Scheduled(self.ran - before.ran, self.waited - before.waited)


def scheduled(pid: int) -> Scheduled:
    """Reads /proc/PID/task/*/schedstat (sched-stats, in the kernel's documentation)."""
    total = Scheduled(0.0, 0.0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that has ended
            ran, waited, _ = (task / "schedstat").read_text().split()
            total += Scheduled(int(ran) / 1e9, int(waited) / 1e9)
    return total


def family_scheduled(pid: int) -> Scheduled:
    """Returns the use of CPU by a process and its living descendants."""
    return sum((scheduled(each) for each in family(pid)), Scheduled(0.0, 0.0))


def family_resident_mib(pid: int) -> float:
    """Resident memory of a process and its living descendants, in MiB."""
    return sum(memory(Path(f"/proc/{each}/status").read_text()).now for each in family(pid)) / 2**20

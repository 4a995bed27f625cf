"""CPU time and memory of processes, from /proc."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_LARGE = 64 << 20
_USED = 0b11 << 62
"""Bits of a page that is in memory, or was written to a swap device."""


def cpu_seconds(stat: str) -> float:
    """User and system time of all threads of a process, from the text of /proc/PID/stat (proc(5))."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of a process, and the most since `forget_peak`."""

    now: int
    peak: int


def memory(status: str) -> Memory:
    """Reads the text of /proc/PID/status."""
    values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    now, peak = (int(values[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return Memory(now, peak)


def process_cpu(pid: int) -> float:
    """User and system time of a process, in seconds."""
    return cpu_seconds(Path(f"/proc/{pid}/stat").read_text())


def family_cpu(pid: int) -> float:
    """User and system time of a process and its living descendants, in seconds."""
    return sum(process_cpu(each) for each in family(pid))


def family_memory_mib(pid: int) -> float:
    """Proportional set size of a process and its living descendants, in bytes."""
    total = 0
    for each in family(pid):
        rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def touch_memory(pid: int) -> None:
    """Make large private memory of a process and its living descendants resident, as if it had been used before: the
    first use of 2 MiB takes up to 5 ms in a virtual machine whose host takes back what is free. Only pages that were
    never used are written to; nothing may use them for the first time meanwhile. Source: pagemap(5)."""
    for each in family(pid):
        with open(f"/proc/{each}/mem", "r+b", buffering=0) as file, open(f"/proc/{each}/pagemap", "rb", 0) as pages:
            for region in _large_regions(Path(f"/proc/{each}/maps").read_text()):
                for address in region:
                    entry = os.pread(pages.fileno(), 8, address // mmap.PAGESIZE * 8)
                    if not int.from_bytes(entry, sys.byteorder) & _USED:
                        os.pwrite(file.fileno(), b"\0", address)


def _large_regions(maps: str) -> Iterator[range]:
    """Yields the addresses of the pages of each large private region without a file. Args: maps: /proc/PID/maps."""
    for line in maps.splitlines():
        addresses, rights, _, _, inode, *name = line.split()
        begin, end = (int(address, 16) for address in addresses.split("-"))
        if rights == "rw-p" and inode == "0" and not name and end - begin >= _LARGE:
            yield range(begin, end, mmap.PAGESIZE)


def family(pid: int) -> Iterator[int]:
    """Yields a process and its living descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from family(int(child))


def busy_seconds(stat: str) -> float:
    """User, system and interrupt time of all cores, from the text of /proc/stat (proc(5))."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, stat.split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS


def machine_cpu() -> float:
    """Returns the busy time of all cores since the machine's start, in seconds."""
    return busy_seconds(Path("/proc/stat").read_text())


def process_memory(pid: int) -> Memory:
    return memory(Path(f"/proc/{pid}/status").read_text())


def forget_peak(pid: int) -> None:
    """The peak counts from now on (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")

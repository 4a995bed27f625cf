"""Resident memory of this process and of the engine's processes, from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from inflight_engine.server.telemetry.families import Families

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory_families(page: Families, spare: int | None) -> None:
    """Add the memory of processes; /proc is read only if requested. `spare`: as in `resident_bytes`."""
    page.gauges(
        "inflight_process_resident_memory_bytes",
        "Resident memory. process=api: HTTP server; process=engine: engine process and its workers. "
        "process=spare: the process that waits to take over from it.",
        ("process",),
        (((name,), size) for name, size in resident_bytes(os.getpid(), spare)),
    )


def resident_bytes(pid: int, spare: int | None = None, proc: Path = _PROC) -> Iterator[tuple[str, int]]:
    """Returns the bytes of the API process `pid`, of its child `spare` (None: there is none), and of all other
    processes below it together. Memory that they share counts in each."""
    yield "api", _resident(pid, proc)
    yield "engine", sum(_resident(child, proc) for child in _descendants(pid, proc) if child != spare)
    if spare is not None:
        yield "spare", _resident(spare, proc)


def _descendants(pid: int, proc: Path) -> Iterator[int]:
    for child in _children(pid, proc):
        yield child
        yield from _descendants(child, proc)


def _children(pid: int, proc: Path) -> list[int]:
    """Child processes of all threads, without threads that are gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process exited while its threads were listed: Python 3.11 raises
        for children in proc.glob(f"{pid}/task/*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def _resident(pid: int, proc: Path) -> int:
    """Resident bytes of a process; 0 if it has exited."""
    with contextlib.suppress(OSError):
        return int((proc / str(pid) / "statm").read_text().split()[1]) * _PAGE
    return 0

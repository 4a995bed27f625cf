"""Which CPUs the engine process and the API process run on.

Both compute at the same time, and a step waits for its slowest thread. Where `num_threads` leaves CPUs over, the engine
process takes as many as it has threads and the API process the rest.

Only where this pair has been given CPUs of its own, though: a mask narrower than the machine (Kubernetes' static CPU
manager, `taskset`). A share of time on every CPU of a node, which is what a pod's CPU limit alone means, is no place:
each engine of the node would bind itself to the same first CPUs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """CPU numbers of each process; they have none in common."""

    engine: frozenset[int]
    api: frozenset[int]


def place(num_threads: int | None, allowed: frozenset[int], num_cpus: int) -> Placement | None:
    """Part the CPUs; None: both processes run wherever the kernel puts them.

    Args:
        num_threads: threads that compute, as configured.
        allowed: CPUs that the processes may use.
        num_cpus: CPUs of the machine.
    """
    if num_threads is None or not 0 < num_threads < len(allowed) < num_cpus:
        return None
    # The first CPU is where a kernel's interrupts often go, so the engine takes the last ones.
    cpus = sorted(allowed)
    return Placement(frozenset(cpus[-num_threads:]), frozenset(cpus[:-num_threads]))


def here(num_threads: int | None) -> Placement | None:
    """Part the CPUs of this machine as `place` does, for a process that is not bound yet."""
    return place(num_threads, frozenset(os.sched_getaffinity(0)), os.cpu_count() or 1)


def bind(cpus: frozenset[int]) -> None:
    """Bind the calling thread and those that it starts from now on."""
    os.sched_setaffinity(0, cpus)

"""The cluster during a wake storm: when replicas are ordered, and the memory of operator and gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from e2e.disruptions import processes
from e2e.disruptions.stage import GATEWAY, OPERATOR, system_pods
from tools.localcluster import ClusterError, kubectl
from tools.localcluster.progress import meanwhile
from tools.measure.processes import process_memory

UPDATE_SECONDS = 0.5
"""Seconds from the end of an update to the next one. An order is noted at most this and the time of an update late,
mostly that of a `kubectl get`."""

MEMORY_SECONDS = 5.0
"""Seconds between two readings of the memory, which take longer: they list pods and read all their processes."""


class Watch:
    """Watches Deployments, and the memory of operator and gateway.

    Attributes:
        ordered: when each service's replica was first seen to be ordered, seconds since the epoch. Replicas that the
            first update finds do not count.
        memory: most resident bytes of the processes of each pod of operator and gateway.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.ordered: dict[str, float] = {}
        self.memory: dict[str, int] = {}
        self._running: set[str] | None = None
        self._memory_at = float("-inf")

    def update(self) -> None:
        """Reads Deployments and memory. Raises ClusterError: the API server does not answer."""
        running = set(ordered_services(kubectl("-n", self._namespace, "get", "deployments", "-o", "json")))
        now = time.time()
        for name in running - (running if self._running is None else self._running):
            self.ordered.setdefault(name, now)
        self._running = running
        if time.monotonic() - self._memory_at >= MEMORY_SECONDS:
            self._memory_at = time.monotonic()
            self._read_memory()

    def _read_memory(self) -> None:
        for pod in (*system_pods(OPERATOR), *system_pods(GATEWAY)):
            with suppress(OSError):  # control groups of pods that end vanish while they are searched
                size = sum(resident_bytes(pid) for pid in processes.of_containers(pod.uid))
                self.memory[pod.name] = max(size, self.memory.get(pod.name, 0))


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Updates `watch` again and again until the block ends. An update that fails is left out."""

    def update() -> None:
        with suppress(ClusterError, OSError, ValueError):
            watch.update()

    with meanwhile(update, UPDATE_SECONDS):
        yield


def ordered_services(listing: str) -> list[str]:
    """Names of the Deployments in a JSON list that have a replica ordered."""
    return [one["metadata"]["name"] for one in json.loads(listing)["items"] if one["spec"]["replicas"]]


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process, shared pages included; 0 when it has ended."""
    with suppress(OSError, KeyError):  # a process that is ending has no sizes any more
        return process_memory(pid).now
    return 0

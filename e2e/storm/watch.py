"""What happens in the cluster during a wake storm: when replicas are ordered, and memory of operator and gateway."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e.cluster import ClusterError, kubectl
from e2e.disruptions import processes
from e2e.disruptions.stage import GATEWAY, OPERATOR, system_pods

LOOK_SECONDS = 0.5
"""Between two looks: precision of the times."""


class Watch:
    """Attributes:
    ordered: when each service's replica was first seen to be ordered, seconds since the epoch.
    memory: most resident bytes of the processes of each pod of operator and gateway.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.ordered: dict[str, float] = {}
        self.memory: dict[str, int] = {}

    def look(self) -> None:
        """Raises:
        ClusterError: the API server does not answer.
        """
        now = time.time()
        for name in ordered_services(kubectl("-n", self._namespace, "get", "deployments", "-o", "json")):
            self.ordered.setdefault(name, now)
        for pod in (*system_pods(OPERATOR), *system_pods(GATEWAY)):
            size = sum(resident_bytes(pid) for pid in processes.of_containers(pod.uid))
            self.memory[pod.name] = max(size, self.memory.get(pod.name, 0))


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Looks again and again, beside what the caller does."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(LOOK_SECONDS):
            with suppress(ClusterError):
                watch.look()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


def ordered_services(listing: str) -> list[str]:
    """Names of the Deployments in a JSON list that have a replica ordered."""
    return [one["metadata"]["name"] for one in json.loads(listing)["items"] if one["spec"]["replicas"]]


def resident_bytes(pid: int) -> int:
    """Of a process, pages that it shares with others included; 0 when it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0

"""Traffic against the service: the driver in a pod of its own, from its first answer until it is stopped."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from e2e.disruptions.connections import Connections
from tools.load.driver import Loss
from tools.localcluster import ClusterError, kubectl
from tools.localcluster.progress import Progress
from tools.testbed.incluster import ScriptPod
from tools.testbed.load_pod import driver_pod
from tools.testbed.service import Service

ARGUMENTS = (
    "--new-connections", "--clients=6", "--max-tokens=12", "--prompt-words=20", "--patience=60",
    "--requests=1000000", "--seconds=3600",
)  # fmt: skip
"""A load that two CPU cores serve with a small model while pods start beside it. Patience is well above the duration of
a request in the worst phase, so that only requests that hang exceed it."""

FLOW_SECONDS = 60
END_SECONDS = 90
SAY_SECONDS = 10
_TELL_TO_STOP = "import os, signal; os.kill(1, signal.SIGTERM)"


@dataclass(frozen=True)
class Traffic:
    """The driver's closing line. `routed` is the address of the pod by client port, for the losses that have one."""

    sent: int
    answered: int
    retries: int
    longest_wait: float
    longest_gap: float
    losses: tuple[Loss, ...]
    routed: dict[int, str]


class Load:
    """Running traffic. `end` ends it and returns its account of every request."""

    def __init__(self, pod: ScriptPod, connections: Connections) -> None:
        self._pod = pod
        self._connections = connections

    def progress(self) -> dict[str, Any] | None:
        """The newest line of the driver; None while there is none, or no API server to ask."""
        line = kubectl("-n", self._pod.namespace, "logs", "--tail=1", self._pod.name, check=False).strip()
        return dict(json.loads(line)) if line.startswith("{") else None

    def wait_flowing(self) -> None:
        """Return once requests are answered.

        Raises:
            TimeoutError: none was.
        """
        deadline = time.monotonic() + FLOW_SECONDS
        while not (progress := self.progress()) or not progress["answered"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no request was answered within {FLOW_SECONDS} s; the driver says: {progress}")
            time.sleep(0.5)

    def end(self) -> Traffic:
        """Let the driver send no more, wait for what it has sent, and return its account."""
        kubectl("-n", self._pod.namespace, "exec", self._pod.name, "--", "python3", "-c", _TELL_TO_STOP)
        self._pod.exit_code(END_SECONDS)
        closing = self.progress()
        if not closing or not closing.get("done"):
            raise ClusterError(f"the traffic driver ended without a closing line: {closing}")
        losses = tuple(Loss(**loss) for loss in closing["losses"])
        routed = {loss.port: pod for loss in losses if loss.port and (pod := self._connections.pod(loss.port))}
        return Traffic(
            closing["sent"],
            closing["answered"],
            closing["retries"],
            closing["longest_wait"],
            closing["longest_gap"],
            losses,
            routed,
        )


@contextmanager
def traffic(service: Service, name: str, say: Progress, *, image: str) -> Iterator[Load]:
    """Traffic from a pod `load-NAME`, which is removed afterwards; says every 10 s how it goes."""
    with driver_pod(service, f"load-{name}", list(ARGUMENTS), image=image) as pod:
        address = kubectl("-n", pod.namespace, "get", "pod", pod.name, "-o", "jsonpath={.status.podIP}")
        with Connections(address) as connections:
            load = Load(pod, connections)
            ended = threading.Event()
            follower = threading.Thread(target=_follow, args=(load, say, ended), daemon=True)
            follower.start()
            try:
                load.wait_flowing()
                yield load
            finally:
                ended.set()
                follower.join()


def _follow(load: Load, say: Progress, ended: threading.Event) -> None:
    while not ended.wait(SAY_SECONDS):
        if progress := load.progress():
            lost = "none lost" if not progress["lost"] else f"lost {progress['lost']}"
            sent, answered, retries = progress["sent"], progress["answered"], progress["retries"]
            say(f"  {sent} sent, {answered} answered, {retries} retries, {lost}")
        else:
            say("  no news of the traffic: the API server does not answer")

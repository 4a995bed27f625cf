"""Traffic against the service: the driver in a pod of its own, from its first answer until it is stopped."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.load.driver import Loss
from tools.localcluster import ClusterError, kubectl
from tools.localcluster.progress import Progress, meanwhile
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

CONNECTIONS = Path("/proc/net/nf_conntrack")
UPDATE_SECONDS = 0.3
"""Seconds between two reads of the table: entries of closed connections stay for 10 s, so none is missed."""

# Both directions of an entry, as `src= dst= sport= dport=`: as the client sent it, and as the pod answers.
_ENTRY = re.compile(r"tcp .*?src=(\S+) dst=\S+ sport=(\d+) dport=\d+ .*?src=(\S+) dst=\S+ sport=\d+ dport=\d+")


def parse_connections(table: str, client: str) -> dict[int, str]:
    """Address of the pod by the client's port, for the connections of the address `client`."""
    found = (_ENTRY.search(line) for line in table.splitlines() if f"src={client} " in line)
    return {int(entry[2]): entry[3] for entry in found if entry and entry[1] == client}


class Connections:
    """The pod that each connection of a client went to, by port, from the node's connection tracking table.

    A request through a Service does not know its pod, and a request that was lost has no response that names it. The
    node that translates the Service's address (kube-proxy's DNAT) can: each entry has the client's port and the pod's
    address. Linux gives a port again from a second after its last connection, to another pod too.
    """

    def __init__(self) -> None:
        self._pods: dict[int, list[tuple[float, str]]] = {}

    def take(self, seen: float, pods: Mapping[int, str]) -> None:
        """Keeps what the table said at `seen`, seconds since the epoch."""
        for port, pod in pods.items():
            known = self._pods.setdefault(port, [])
            if not known or known[-1][1] != pod:
                known.append((seen, pod))

    def pod(self, port: int, ended: float) -> str | None:
        """Address of the pod of the connection from `port` that was there at `ended`; None: it was not seen."""
        until = ended + 2 * UPDATE_SECONDS
        return next((pod for seen, pod in reversed(self._pods.get(port, ())) if seen <= until), None)


@contextmanager
def connections(client: str) -> Iterator[Connections]:
    """Yields the connections of the address `client`, kept up to date while the block runs."""
    found = Connections()
    with meanwhile(lambda: found.take(time.time(), parse_connections(CONNECTIONS.read_text(), client)), UPDATE_SECONDS):
        yield found


@dataclass(frozen=True)
class Traffic:
    """The driver's closing line. `routed` is the address of the pod that a lost request was on, where it is known."""

    sent: int
    answered: int
    retries: int
    longest_wait: float
    longest_gap: float
    losses: tuple[Loss, ...]
    routed: dict[Loss, str]


class Load:
    """Running traffic. `end` ends it and returns its account of every request."""

    def __init__(self, pod: ScriptPod, routed: Connections) -> None:
        self._pod = pod
        self._routed = routed

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
        found = {loss: self._routed.pod(loss.port, loss.ended) for loss in losses if loss.port}
        routed = {loss: pod for loss, pod in found.items() if pod}
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
        with connections(address) as routed:
            load = Load(pod, routed)
            with meanwhile(lambda: _tell(load, say), SAY_SECONDS):
                load.wait_flowing()
                yield load


def _tell(load: Load, say: Progress) -> None:
    if progress := load.progress():
        lost = "none lost" if not progress["lost"] else f"lost {progress['lost']}"
        sent, answered, retries = progress["sent"], progress["answered"], progress["retries"]
        say(f"  {sent} sent, {answered} answered, {retries} retries, {lost}")
    else:
        say("  no news of the traffic: the API server does not answer")

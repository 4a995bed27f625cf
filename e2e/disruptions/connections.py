"""Which pod each connection of a client was routed to, from the node's connection tracking table.

A request through a Service does not know its pod, and a request that was lost has no response that names it. The node
that translates the Service's address (kube-proxy's DNAT) can: each entry has the client's port and the pod's address.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import TracebackType

TABLE = Path("/proc/net/nf_conntrack")
UPDATE_SECONDS = 0.3
"""Seconds between two reads of the table: entries of closed connections stay for 10 s, so none is missed."""

# Both directions of an entry, as `src= dst= sport= dport=`: as the client sent it, and as the pod answers.
_ENTRY = re.compile(r"tcp .*?src=(\S+) dst=\S+ sport=(\d+) dport=\d+ .*?src=(\S+) dst=\S+ sport=\d+ dport=\d+")


def parse(table: str, client: str) -> dict[int, str]:
    """Address of the pod by the client's port, for the connections of the address `client`."""
    found = (_ENTRY.search(line) for line in table.splitlines() if f"src={client} " in line)
    return {int(entry[2]): entry[3] for entry in found if entry and entry[1] == client}


class Connections:
    """Follows the connections of one client while the block runs."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._pods: dict[int, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def pod(self, port: int) -> str | None:
        """Address of the pod that the newest connection from `port` went to; None when it was never seen."""
        return self._pods.get(port)

    def __enter__(self) -> Connections:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(UPDATE_SECONDS):
            self._pods.update(parse(TABLE.read_text(), self._client))

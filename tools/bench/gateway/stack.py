"""Gateway pods on this machine, without Kubernetes: picker, relay and Envoy as processes, in front of given engines."""

from __future__ import annotations

import hashlib
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.ownership import Owners
from tools.measure.processes import family_cpu, family_memory_mib
from tools.measure.served import free_port, process, wait_ready

_BIN = Path(sys.executable).parent
_ENVOY = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
_READY_SECONDS = 30.0
GATEWAY_KEY = "benchmark"
SECRET = "keys"
"""Name of the Secret with API keys."""

Object = dict[str, Any]
"""Content of a file of `inflight-gateway picker --static`."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway pod. Attributes: port: for clients. http_port: of the picker. pids: processes by name."""

    port: int
    http_port: int
    pids: dict[str, int]

    def cpu(self) -> dict[str, float]:
        """CPU seconds that each process has used."""
        return {name: family_cpu(pid) for name, pid in self.pids.items()}

    def memory(self) -> dict[str, float]:
        """Memory of each process in MiB (proportional set size)."""
        return {name: family_memory_mib(pid) for name, pid in self.pids.items()}


class Gateways:
    """Running gateway pods, which share the services out. Attributes: pods: by number."""

    def __init__(self, static: Path, peers: Sequence[Object]) -> None:
        self.pods: list[Gateway] = []
        self._static = static
        self._peers = list(peers)
        self._engines: dict[ServiceKey, int] = {}

    def configure(self, services: Sequence[Object], secrets: Sequence[Object] = ()) -> None:
        """Replaces services and secrets; pickers read them within half a second."""
        self._engines = {ServiceKey("default", each["name"]): len(each["endpoints"]) for each in services}
        content = {"services": list(services), "secrets": list(secrets), "peers": self._peers}
        # At once: a picker may read the file at any time.
        new = self._static.with_suffix(".new")
        new.write_text(json.dumps(content))
        new.replace(self._static)

    def owner(self, service: str) -> int:
        """Returns the number of the pod that owns a service."""
        names = [each["name"] for each in self._peers]
        return names.index(Owners(self._engines, names).owner(ServiceKey("default", service)))

    def by_owner(self, service: str) -> list[Gateway]:
        """Returns all pods, the one that owns a service first."""
        owner = self.owner(service)
        return [self.pods[owner], *self.pods[:owner], *self.pods[owner + 1 :]]


@contextmanager
def gateways(
    folder: Path,
    services: Sequence[Object],
    secrets: Sequence[Object] = (),
    *,
    pods: int = 1,
    flags: Sequence[str] = (),
) -> Iterator[Gateways]:
    """Gateway pods with one relay each in front of `services`. Args: flags: of pickers.

    Raises:
        RuntimeError: one did not become ready; the message has the end of the logs.
    """
    folder.mkdir(parents=True)
    key = folder / "key"
    key.write_text(GATEWAY_KEY)
    names = [f"gateway-{number}" for number in range(pods)]
    links = {name: free_port() for name in names}
    found = Gateways(
        folder / "services.yaml", [{"name": name, "address": f"127.0.0.1:{port}"} for name, port in links.items()]
    )
    found.configure(services, secrets)
    with ExitStack() as stack:
        waiting = []
        for name in names:
            own = ["--static", str(folder / "services.yaml"), "--gateway-key-file", str(key), *flags]
            pod, ready = _start(stack, folder / name, [*own, "--name", name, "--link-port", str(links[name])])
            found.pods.append(pod)
            waiting.append(ready)
        for ready in waiting:
            ready()
        yield found


@contextmanager
def gateway(folder: Path, services: Sequence[Object]) -> Iterator[Gateway]:
    """A single gateway pod in front of `services`. Other versions of this repository have this function, see `beside`.

    Raises:
        RuntimeError: see `gateways`.
    """
    with gateways(folder, services) as running:
        yield running.pods[0]


def _start(stack: ExitStack, folder: Path, flags: Sequence[str]) -> tuple[Gateway, Callable[[], None]]:
    """Starts a pod. Returns it, and a function that returns once it is ready."""
    folder.mkdir()
    port, http_port = free_port(), free_port()
    bootstrap = folder / "envoy.json"
    ours, run_dir = str(_BIN / "inflight-gateway"), ["--run-dir", str(folder)]
    config = ["envoy-config", *run_dir, "--port", str(port), "--output", str(bootstrap)]
    subprocess.run([ours, *config], check=True)
    picker = ["picker", *run_dir, *flags, "--http-port", str(http_port), "--local-port", "0"]
    commands = {
        "picker": [ours, *picker, "--drain-min=0", "--drain-max=1", "--no-access-log"],
        "relay": [ours, "relay", *run_dir, "--drain-max=1"],
        "envoy": [str(_BIN / "envoy"), "-c", str(bootstrap), *_ENVOY],
    }
    running = {
        name: stack.enter_context(process(folder / f"{name}.log", command)) for name, command in commands.items()
    }
    processes = {name: (each, folder / f"{name}.log") for name, each in running.items()}
    return (
        Gateway(port, http_port, {name: each.pid for name, each in running.items()}),
        partial(wait_ready, f"http://127.0.0.1:{http_port}/readyz", processes, _READY_SECONDS),
    )


def new_key() -> str:
    return "ifk_" + secrets.token_urlsafe(32)


def secret(keys: Mapping[str, str]) -> dict[str, Any]:
    """The Secret, as the gateway's static file has it. Args: keys: key -> tenant."""
    entries = {
        f"{tenant}-{number}": json.dumps({"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()})
        for number, (key, tenant) in enumerate(keys.items())
    }
    return {"name": SECRET, "data": entries}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}

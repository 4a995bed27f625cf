"""A gateway on this machine, without Kubernetes: picker, relay and Envoy as processes, in front of given engines."""

from __future__ import annotations

import hashlib
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.measure.processes import family_cpu, family_memory_mib
from tools.measure.served import free_port, process, wait_ready

_BIN = Path(sys.executable).parent
_ENVOY = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
_READY_SECONDS = 30.0
SECRET = "keys"
"""Name of the Secret with API keys."""

Object = dict[str, Any]
"""Content of a file of `inflight-gateway picker --static`."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway. Attributes: port: for clients. http_port: of the picker. pids: of its processes, by name.
    static: file of services and secrets."""

    port: int
    http_port: int
    pids: dict[str, int]
    static: Path

    def configure(self, services: Sequence[Object], secrets: Sequence[Object] = ()) -> None:
        """Replace services and secrets; the picker reads them within half a second."""
        write_static(self.static, services, secrets)

    def cpu(self) -> dict[str, float]:
        """CPU seconds that each process has used."""
        return {name: family_cpu(pid) for name, pid in self.pids.items()}

    def memory(self) -> dict[str, float]:
        """Memory of each process in MiB (proportional set size)."""
        return {name: family_memory_mib(pid) for name, pid in self.pids.items()}


@contextmanager
def gateway(
    folder: Path, services: Sequence[Object], secrets: Sequence[Object] = (), *, key_file: Path | None = None
) -> Iterator[Gateway]:
    """A gateway with one relay in front of `services`.

    Args:
        key_file: with the gateway key, for services with API keys.

    Raises:
        RuntimeError: it did not become ready; the message has the end of the logs.
    """
    folder.mkdir(parents=True)
    port, http_port = free_port(), free_port()
    static, bootstrap = folder / "services.yaml", folder / "envoy.json"
    write_static(static, services, secrets)
    ours, run_dir = str(_BIN / "inflight-gateway"), ["--run-dir", str(folder)]
    config = ["envoy-config", *run_dir, "--port", str(port), "--output", str(bootstrap)]
    subprocess.run([ours, *config], check=True)
    picker = ["picker", *run_dir, "--static", str(static), "--http-port", str(http_port), "--local-port", "0"]
    if key_file is not None:
        picker += ["--gateway-key-file", str(key_file)]
    commands = {
        "picker": [ours, *picker, "--drain-min=0", "--drain-max=1", "--no-access-log"],
        "relay": [ours, "relay", *run_dir, "--drain-max=1"],
        "envoy": [str(_BIN / "envoy"), "-c", str(bootstrap), *_ENVOY],
    }
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(process(folder / f"{name}.log", command)) for name, command in commands.items()
        }
        processes = {name: (each, folder / f"{name}.log") for name, each in running.items()}
        wait_ready(f"http://127.0.0.1:{http_port}/readyz", processes, _READY_SECONDS)
        yield Gateway(port, http_port, {name: each.pid for name, each in running.items()}, static)


def write_static(file: Path, services: Sequence[Object], secrets: Sequence[Object]) -> None:
    """Writes a file atomically: the picker may read it at any time."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"services": list(services), "secrets": list(secrets)}))
    new.replace(file)


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

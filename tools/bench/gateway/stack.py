"""A gateway on this machine, without Kubernetes: picker, relay and Envoy as processes, in front of given engines."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.measure.processes import family_cpu, family_memory_mib

_BIN = Path(sys.executable).parent
_ENVOY = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
_READY_SECONDS = 30.0
_STOP_SECONDS = 10.0
_LOG_CHARACTERS = 1500

Object = dict[str, Any]
"""In the form of the file of `inflight-gateway picker --static`."""


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
        """MiB of each process (proportional set size)."""
        return {name: family_memory_mib(pid) for name, pid in self.pids.items()}


def unused_port() -> int:
    """Not a fixed one where it is free: Envoys of several benchmarks would share it (SO_REUSEPORT)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(log: Path, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with the block; its output goes to `log`."""
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


@contextmanager
def gateway(
    folder: Path, services: Sequence[Object], secrets: Sequence[Object] = (), *, key_file: Path | None = None
) -> Iterator[Gateway]:
    """A gateway with one relay in front of `services`.

    Args:
        key_file: with the gateway key, for signed tenants.

    Raises:
        RuntimeError: it did not become ready; the message has the end of the logs.
    """
    folder.mkdir(parents=True)
    port, http_port = unused_port(), unused_port()
    static, bootstrap = folder / "services.yaml", folder / "envoy.json"
    write_static(static, services, secrets)
    ours, run_dir = str(_BIN / "inflight-gateway"), ["--run-dir", str(folder)]
    subprocess.run([ours, "envoy-config", *run_dir, "--output", str(bootstrap)], check=True)
    picker = ["picker", *run_dir, "--static", str(static), "--port", str(port), "--http-port", str(http_port)]
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
        _wait_ready(http_port, running, folder)
        yield Gateway(port, http_port, {name: each.pid for name, each in running.items()}, static)


def write_static(file: Path, services: Sequence[Object], secrets: Sequence[Object]) -> None:
    """Atomically: the picker may read it at any time."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"services": list(services), "secrets": list(secrets)}))
    new.replace(file)


def _wait_ready(http_port: int, running: dict[str, subprocess.Popen[bytes]], folder: Path) -> None:
    until = time.monotonic() + _READY_SECONDS
    while True:
        ended = [name for name, each in running.items() if each.poll() is not None]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/readyz", timeout=2) as answer:
                if answer.status == 200:
                    return
                said = str(answer.status)
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            said = str(error)
        if ended or time.monotonic() > until:
            logs = "\n".join((folder / f"{name}.log").read_text()[-_LOG_CHARACTERS:] for name in ended or running)
            what = f"{', '.join(ended)} ended" if ended else f"not ready in {_READY_SECONDS:.0f} s ({said})"
            raise RuntimeError(f"the gateway did not start: {what}\n{logs}")
        time.sleep(0.1)

"""vLLM with the plugin, on this machine's CPU, from its own environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.bench.engine.peers import driver_environment, exported, installed, named
from tools.localcluster.layout import REPOSITORY, current
from tools.measure.served import free_port, process, wait_ready

READY_SECONDS = 300.0
PLUGIN = (
    "--scheduler-cls=inflight_vllm.scheduler.LiveScheduler", "--middleware=inflight_vllm.middleware.Inflight",
    "--worker-cls=inflight_vllm.cpu_worker.SeededWorker",
)  # fmt: skip
PLUGIN_PATH = tuple(str(REPOSITORY / folder) for folder in ("vllm_plugin", "common"))
"""Where the plugin's packages are in this repository."""


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A running vLLM. Attributes: url: of the OpenAI API. admin_port: of the plugin's admin API. pid: of the server."""

    url: str
    admin_port: int
    pid: int


@contextmanager
def served_vllm(
    log: Path,
    *flags: str,
    say: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    threads: int | None = None,
    plugin: bool = True,
) -> Iterator[VllmServer]:
    """The built-in model in bfloat16, without compilation, while the block runs; `flags` are of `vllm serve`.

    Args:
        environment: variables on top of this process' own.
        threads: that compute (default: as many as there are cores).
        plugin: with the plugin's scheduler and middleware.

    Raises:
        RuntimeError: it did not become ready.
        tools.bench.engine.peers.InstallError: it cannot be installed.
    """
    (peer,) = named("vllm")
    cache = current().root / "bench"
    model, venv = exported(cache, say), installed(peer, cache, say)
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    port, admin = free_port(), free_port()
    variables = {
        **driver_environment(peer, venv, cpus),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # a server's two processes, as in a pod
        "PYTHONPATH": os.pathsep.join(PLUGIN_PATH),
        "INFLIGHT_ADMIN_PORT": str(admin),
        "INFLIGHT_STATE_FILE": str(log.with_suffix(".state")),
        **(environment or {}),
    }
    command = [
        *(str(venv / "bin" / "vllm"), "serve", str(model.folder), "--served-model-name=smollm2", "--dtype=bfloat16"),
        *("--host=127.0.0.1", f"--port={port}", "--enforce-eager", "--max-model-len=2048"),
        *(PLUGIN if plugin else ()),
        *flags,
    ]
    url = f"http://127.0.0.1:{port}"
    with process(log, command, variables) as running:
        wait_ready(f"{url}/health", {"vLLM": (running, log)}, READY_SECONDS)
        yield VllmServer(url, admin, running.pid)

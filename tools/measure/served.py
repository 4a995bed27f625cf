"""A running engine to measure: the command a user starts, on this machine's CPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.demo_engine import ENGINE, free_port, wait_ready
from tools.measure.cpu_share import CpuGroup

MODEL = "builtin://smollm2"
STOP_SECONDS = 30
_LOG_CHARACTERS = 1000


@contextmanager
def served_engine(
    log: Path, *flags: str, environment: Mapping[str, str] | None = None, group: CpuGroup | None = None
) -> Iterator[str]:
    """The engine's address while the block runs; it is drained and stopped afterwards.

    Args:
        environment: variables on top of this process' own.
        group: that its processes are in.

    Raises:
        RuntimeError: it did not become ready; the message has the end of its log.
    """
    port = free_port(8100)
    command = [str(ENGINE), "serve", MODEL, "--host", "127.0.0.1", "--port", str(port), *flags]
    with log.open("wb") as errors:
        engine = subprocess.Popen(command, stderr=errors, process_group=0, env={**os.environ, **(environment or {})})
        try:
            if group is not None:
                group.join(engine.pid)
            try:
                wait_ready(engine, port)
            except RuntimeError as error:
                raise RuntimeError(f"{error}: {log.read_text()[-_LOG_CHARACTERS:]}") from None
            yield f"http://127.0.0.1:{port}"
        finally:
            engine.terminate()
            try:
                engine.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                engine.kill()
                engine.wait()

"""How long a server takes from being started to taking requests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.bench.engine.process import EngineError, kill, last_line

_POLL_SECONDS = 0.02
_STOP_SECONDS = 20


def seconds_to_ready(
    command: Sequence[str], url: str, environment: Mapping[str, str], log: Path, *, at_most: float = 180
) -> float:
    """Start a server, ask `url` until it answers 200, stop it again.

    Args:
        environment: beside this process's own.
        log: what the server prints.

    Raises:
        EngineError: it ended, or did not answer in time.
    """
    with log.open("wb") as output:
        started = time.perf_counter()
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}, process_group=0
        )
        try:
            while not _answers(url):
                if server.poll() is not None:
                    raise EngineError(f"the server ended with exit code {server.returncode}: {last_line(log)}")
                if time.perf_counter() - started > at_most:
                    raise EngineError(f"the server was not ready after {at_most:g} s: {last_line(log)}")
                time.sleep(_POLL_SECONDS)
            return time.perf_counter() - started
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_STOP_SECONDS)
            kill(server)  # with all that it started


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False

"""Servers as child processes: started, waited for until they are ready, and ended with all that they started."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

from tools.measure.cpu_share import CpuGroup

ENGINE = Path(sys.executable).parent / "inflight-engine"
MODEL = "builtin://smollm2"
READY_SECONDS = 90.0
STOP_SECONDS = 30
_POLL_SECONDS = 0.02
_LOG_LINES = 12
_LINE_CHARACTERS = 200

Process = subprocess.Popen[bytes]


_ports = cycle(range(21_000, 29_000))
for _ in range(secrets.randbelow(8_000)):
    next(_ports)


def free_port(wanted: int = 0) -> int:
    """Returns `wanted` if it is free, else another free port, a different one in each call.

    Below the ports that the kernel gives to connections, one of which could be taken until a server listens, and above
    those of InferencePools."""
    with socket.socket() as probe:
        if wanted and probe.connect_ex(("127.0.0.1", wanted)) != 0:
            return wanted
    while True:
        port = next(_ports)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("", port))
            return port


@contextmanager
def process(
    log: Path | None,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[Process]:
    """A process in a group of its own, which ends with the block: SIGTERM, then SIGKILL for all of the group.

    Args:
        log: what it prints; None: where this process prints.
        environment: variables on top of this process' own.
        folder: that it runs in; None: that of this process.
    """
    with log.open("wb") if log else contextlib.nullcontext() as output:
        running = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT if log else None,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            process_group=0,
        )
        try:
            yield running
        finally:
            try:
                running.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.wait(STOP_SECONDS)
            finally:  # a second signal interrupts the wait: `timeout` sends two
                kill(running)


def kill(running: Process) -> None:
    """End the process and all of its group at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def wait_ready(
    url: str,
    running: Mapping[str, tuple[Process, Path | None]],
    seconds: float = READY_SECONDS,
    lines: int = _LOG_LINES,
) -> None:
    """Return when `url` answers 200.

    Args:
        running: the processes that the server needs.
        lines: of the logs, in the message of an error.

    Raises:
        RuntimeError: one of the processes ended, or the time is over; the message has the end of the logs.
    """
    deadline = time.monotonic() + seconds
    while not _answers(url):
        ended = {name: each for name, each in running.items() if each[0].poll() is not None}
        if ended or time.monotonic() > deadline:
            why = [f"{name} ended with exit code {each.returncode}" for name, (each, _) in ended.items()]
            why = why or [f"not ready after {seconds:g} s: {', '.join(running)}"]
            said = [log_end(log, lines) for _, log in (ended or running).values() if log]
            raise RuntimeError(": ".join(["; ".join(why), *said]))
        time.sleep(_POLL_SECONDS)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def log_end(log: Path, lines: int = 1) -> str:
    """The last lines of a log that say something, each cut to its end."""
    said = [line.strip()[-_LINE_CHARACTERS:] for line in log.read_text(errors="replace").split("\n") if line.strip()]
    return "\n".join(said[-lines:]) or "nothing printed"


def seconds_to_ready(
    command: Sequence[str], url: str, environment: Mapping[str, str], log: Path, *, at_most: float = 180
) -> float:
    """Start a server, ask `url` until it answers 200, stop it again.

    Raises:
        RuntimeError: it ended, or did not answer in time; one line.
    """
    started = time.perf_counter()
    with process(log, command, environment) as server:
        wait_ready(url, {"the server": (server, log)}, at_most, lines=1)
        return time.perf_counter() - started


@contextmanager
def served_engine(
    log: Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    group: CpuGroup | None = None,
    host: str = "127.0.0.1",
) -> Iterator[str]:
    """The address of an engine on this machine's CPU, started by the command that a user starts.

    Args:
        environment: variables on top of this process' own.
        group: that its processes are in.
        host: address of the loopback interface that it listens on.

    Raises:
        RuntimeError: it did not become ready; the message has the end of its log.
    """
    url = f"http://{host}:{(port := free_port())}"
    command = [str(ENGINE), "serve", MODEL, "--host", host, "--port", str(port), *flags]
    with process(log, command, environment) as engine:
        if group is not None:
            group.join(engine.pid)
        wait_ready(f"{url}/ready", {"the engine": (engine, log)})
        yield url

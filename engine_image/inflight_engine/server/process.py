"""Starts the engine process. Imports only what is light: the process starts before anything else is done."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflight_engine.config import EngineConfig


class EngineProcess:
    """The child process and the socket to it. Its end of the socket closes when it dies, however it dies.

    Attributes:
        started: seconds, monotonic.
    """

    def __init__(self) -> None:
        """Starts it. It imports what it needs, which takes seconds, and waits for its configuration."""
        self.started = time.monotonic()
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, _blocked(signal.SIGINT, signal.SIGTERM):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "inflight_engine.engine_process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.PIPE,
            )

    def load(self, config: EngineConfig) -> None:
        """Tells it what to load; loading goes on while the caller does something else."""
        import msgspec

        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # its death is seen on the socket
            pipe.write(msgspec.json.encode(config))

    def wait(self, timeout: float) -> int | None:
        """Its exit status (negative: the signal that ended it); None if it still runs after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    """A process that is started now has these signals blocked from its first moment to its last: a terminal's Ctrl-C
    reaches the whole process group, and to drain is the API process's decision. Here they wait until this is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def describe_exit(status: int | None) -> str:
    """How a process ended, for people."""
    if status is None:
        return "closed its connection"
    if status == -9:
        return "was killed (signal 9; often the kernel's or Kubernetes' memory limit)"
    if status < 0:
        return f"was ended by signal {-status}"
    return f"exited with status {status}"

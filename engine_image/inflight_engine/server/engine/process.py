"""Starts the engine process. Has only light imports: the process starts before any other work."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from inflight_engine.native.kept_weights import DESCRIPTOR_VARIABLE
from inflight_settings.engine import EngineConfig

_GROUP_EXIT_SECONDS = 5.0
"""Time for the kernel to end killed processes and to free their memory."""


class EngineProcess:
    """The child process and its socket. Its end of the socket closes when it dies, for any reason.

    Attributes:
        started: seconds, monotonic.
    """

    def __init__(self, cpus: frozenset[int] | None = None, *, spare: bool = False, weights: int | None = None) -> None:
        """Start the process. It imports its modules, which takes seconds, and waits for its configuration.

        Args:
            cpus: numbers of the CPUs that it may use; None: those that this process may use now.
            weights: descriptor of the file in memory for packed weights; None: of a new one.
            spare: it gets its configuration later, if ever, and imports its modules when nothing else wants the CPUs.
        """
        self.started = time.monotonic()
        self._killed = False
        self._cpus = frozenset(os.sched_getaffinity(0)) if cpus is None else cpus
        if weights is None:
            with contextlib.suppress(OSError):  # without one each process has its weights for itself
                weights = os.memfd_create("inflight-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._weights = weights
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, _blocked(signal.SIGINT, signal.SIGTERM), _inheriting(self._cpus):
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "inflight_engine.engine_process", str(theirs.fileno())),
                    *(["spare"] if spare else []),
                ],
                pass_fds=[theirs.fileno()] if weights is None else [theirs.fileno(), weights],
                env={**os.environ, DESCRIPTOR_VARIABLE: str(weights)},
                stdin=subprocess.PIPE,
                process_group=0,  # with the processes that it starts, so that all of them can be ended together
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def successor(self, *, spare: bool = False) -> EngineProcess:
        """Start another process on the same CPUs, regardless of later changes of this process's affinity."""
        return EngineProcess(self._cpus, spare=spare, weights=self._weights)

    def load(self, config: EngineConfig) -> None:
        """Send its configuration; loading continues in the background."""
        import msgspec

        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # its death is seen on the socket
            pipe.write(msgspec.json.encode(config))

    def imported(self, timeout: float) -> bool:
        """Wait until a spare has imported its modules; False: it has not after `timeout` seconds, or is gone."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(timeout * 1000)) and self.wait(0) is None

    def wait(self, timeout: float) -> int | None:
        """Wait for the exit status (negative: the signal that ended it); None if the process still runs after `timeout`
        seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it and the processes that it started, also stopped ones; returns when they are gone."""
        if self._killed:
            return  # Its pid may have been reused.
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _GROUP_EXIT_SECONDS
        while _group_lives(self._process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)


def _group_lives(group: int) -> bool:
    # As a container's PID 1, this process inherits orphans of the group, and has to reap them.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-group, os.WNOHANG)
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _inheriting(cpus: frozenset[int]) -> Iterator[None]:
    """A process that is started now may use these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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
    """Human-readable exit status of a process."""
    if status is None:
        return "closed its connection"
    if status == -9:
        return "was killed (signal 9; often the kernel's or Kubernetes' memory limit)"
    if status < 0:
        return f"was ended by signal {-status}"
    return f"exited with status {status}"

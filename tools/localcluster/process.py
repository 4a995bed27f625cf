"""Detached programs: started with their own log, known again later by pid, start time and command line."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.localcluster.errors import ClusterError
from tools.localcluster.files import write_json
from tools.localcluster.layout import Layout

LOG_LINES_SHOWN = 12


@dataclass(frozen=True)
class Program:
    """A long-running program: its name, its command line, and what it has more in its environment."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(binary: Path, *flags: str, **environment: str) -> Program:
        """The program in the file `binary`, under the file's name."""
        return Program(binary.name, (str(binary), *flags), environment)

    def plus(self, *flags: str) -> Program:
        """Returns the program with further flags, which override earlier ones."""
        return replace(self, argv=(*self.argv, *flags))


@dataclass(frozen=True)
class Record:
    """Identity of a started process. A pid alone may have been given to another process since."""

    pid: int
    start_ticks: int
    argv: tuple[str, ...]


def parse_stat(stat: str) -> tuple[str, int]:
    """State letter and start time (clock ticks since boot) from the text of /proc/PID/stat, see proc(5)."""
    after_name = stat.rpartition(")")[2].split()
    return after_name[0], int(after_name[19])


def observe(pid: int) -> Record | None:
    """The process that has `pid` now; None when there is none, or only its exit status is left."""
    try:
        state, start_ticks = parse_stat(Path(f"/proc/{pid}/stat").read_text())
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if state in "ZX":
        return None
    return Record(pid, start_ticks, tuple(command_line.decode(errors="replace").rstrip("\0").split("\0")))


class Processes:
    """The started programs of one node: one record file for each below `layout.processes`."""

    def __init__(self, layout: Layout) -> None:
        self.folder = layout.processes
        self.logs = layout.logs

    def running(self, name: str) -> Record | None:
        """The process recorded under `name`, if that very process still runs."""
        try:
            saved = json.loads((self.folder / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        record = Record(saved["pid"], saved["start_ticks"], tuple(saved["argv"]))
        _reap(record.pid)
        # On its way out a process has lost its command line and still holds its files, locks and ports.
        return record if observe(record.pid) in (record, replace(record, argv=("",))) else None

    def started_at(self, name: str) -> datetime.datetime:
        """Returns when the running process `name` started, in whole seconds. Raises ClusterError if it has ended."""
        record = self.running(name)
        if not record:
            raise ClusterError(f"{name} ended; its log {self.log(name)} ends with:\n{tail(self.log(name))}")
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - record.start_ticks / os.sysconf("SC_CLK_TCK")
        started = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
        return started.replace(microsecond=0)

    def ensure(self, program: Program, configuration: str = "") -> bool:
        """Start `program` unless it runs so already; True when it was started now.

        One that runs with another command line, or read another `configuration` (the text) at its start, is replaced.
        """
        digest = hashlib.sha256(configuration.encode()).hexdigest()
        path = self.folder / f"{program.name}.json"
        running = self.running(program.name)
        if running:
            if running.argv == program.argv and json.loads(path.read_text())["configuration"] == digest:
                return False
            self.stop(program.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.log(program.name)
        _rotate(log)
        output = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        pid = os.posix_spawn(
            program.argv[0],
            program.argv,
            {**os.environ, **program.environment},
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), output, (os.POSIX_SPAWN_DUP2, 1, 2)],
            setsid=True,
        )
        started = _wait_for_exec(pid, program.argv)
        start_ticks = started.start_ticks if started else 0
        saved = {"pid": pid, "start_ticks": start_ticks, "argv": program.argv, "configuration": digest}
        write_json(path, saved)
        return True

    def stop(self, name: str, grace_seconds: float = 10.0) -> None:
        """End the recorded process: SIGTERM, after `grace_seconds` SIGKILL; forget its record."""
        record = self.running(name)
        if record:
            for sent in (signal.SIGTERM, signal.SIGKILL):
                os.kill(record.pid, sent)
                deadline = time.monotonic() + grace_seconds
                while self.running(name) and time.monotonic() < deadline:
                    time.sleep(0.02)
                if not self.running(name):
                    break
            else:
                raise ClusterError(f"{name} (process {record.pid}) does not end; end it by hand and run this again")
        (self.folder / f"{name}.json").unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def wait_ready(self, name: str, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait until `ready()`. Raises ClusterError with the log's last lines when the process ends or the time is
        over."""
        start = time.monotonic()
        pause = 0.02
        while not ready():
            gone = not self.running(name)
            if gone or time.monotonic() - start > timeout_seconds:
                why = "ended" if gone else f"was not ready after {timeout_seconds:.0f} s"
                raise ClusterError(f"{name} {why}; its log {self.log(name)} ends with:\n{tail(self.log(name))}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)


def kill_all(description: str, find: Callable[[], Collection[int]], timeout_seconds: float = 10.0) -> None:
    """Send SIGKILL to the processes that `find` finds until there are none.

    Raises:
        ClusterError: they do not end; `description` names them in the message.
    """
    deadline = time.monotonic() + timeout_seconds
    while left := find():
        if time.monotonic() > deadline:
            raise ClusterError(f"{description} do not end: {sorted(left)}; end them by hand, then try again")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def tail(path: Path, lines: int = LOG_LINES_SHOWN) -> str:
    """The last lines of a log, each cut to 300 characters; says so where there is none."""
    if not path.exists():
        return "  (no log)"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64 * 1024))
        kept = file.read().decode(errors="replace").splitlines()[-lines:]
    return "\n".join(f"  {line[:300]}" for line in kept) or "  (empty)"


def _rotate(log: Path, limit_bytes: int = 20 * 2**20) -> None:
    if log.exists() and log.stat().st_size > limit_bytes:
        log.replace(log.with_suffix(".log.old"))


def _wait_for_exec(pid: int, argv: tuple[str, ...], timeout_seconds: float = 5.0) -> Record | None:
    """The new process once it shows its own command line (a moment after the spawn); None when it ended before."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        _reap(pid)
        seen = observe(pid)
        if seen is None or seen.argv == argv:
            return seen
        time.sleep(0.002)
    return None


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # started by an earlier call of the tool: not this process's child
        os.waitpid(pid, os.WNOHANG)

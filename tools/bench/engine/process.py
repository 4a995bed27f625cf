"""An engine's driver program in its own environment, which runs jobs one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.bench.engine.jobs import Job
from tools.localcluster.layout import REPOSITORY
from tools.measure.served import kill, log_end

START_SECONDS = 180
JOB_SECONDS = 300
_STOP_SECONDS = 20


class EngineError(Exception):
    """An engine did not start, failed in a job, or took too long; one line."""


class EngineProcess:
    """A started driver. Use `started`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._buffer = b""
        self.engine = ""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def measure(self, job: Job) -> float:
        """Seconds that the job took.

        Raises:
            EngineError: it failed. The process can take other jobs if it is alive.
        """
        return float(self.ask(asdict(job), JOB_SECONDS)["seconds"])

    def ask(self, line: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Sends a line and returns the answer. Raises what `measure` raises."""
        if self._process.stdin is None:
            raise AssertionError("the driver was started without a pipe")
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise EngineError(self._ended()) from None
        answer: dict[str, Any] = json.loads(self._line(seconds))
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def _line(self, seconds: float) -> bytes:
        if self._process.stdout is None:
            raise AssertionError("the driver was started without a pipe")
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    kill(self._process)
                    raise EngineError(f"no answer within {seconds:g} s")
                received = os.read(self._process.stdout.fileno(), 1 << 16)
                if not received:
                    raise EngineError(self._ended())
                self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _ended(self) -> str:
        return f"its process ended with exit code {self._process.wait()}: {log_end(self._log)}"


@contextmanager
def started(
    python: Path, module: str, settings: Mapping[str, Any], environment: Mapping[str, str], log: Path
) -> Iterator[EngineProcess]:
    """The driver `module` under `python`, loaded; it ends with the block, and whatever it started with it.

    Args:
        environment: beside this process's own.
        log: what it prints.

    Raises:
        EngineError: it did not load.
    """
    paths = [str(REPOSITORY), str(REPOSITORY / "common"), str(REPOSITORY / "engine_image")]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [str(python), "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=own,
            process_group=0,
        )
        try:
            engine = EngineProcess(process, log)
            engine.engine = engine.ask(settings, START_SECONDS)["engine"]
            yield engine
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    kill(process)
    if process.stdout is not None:
        process.stdout.close()

"""Operator processes as a Deployment would run them, but outside of pods."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import ClusterError
from e2e.cluster.process import Processes, Program, Record, tail

NAMESPACE = "inflight-system"
"""Of the Lease and of the operator's own Secrets."""
ENGINE_IMAGE = "localhost/inflight-engine:fake"
FIRST_PORT = 8080


@dataclass(frozen=True, slots=True)
class Operator:
    name: str
    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class Operators:
    """Starts operators that take part in one election."""

    processes: Processes
    kubeconfig: Path
    interval: float

    @contextmanager
    def running(self, number: int) -> Iterator[Operator]:
        """Operator `number`; it ends with the block, if it has not before."""
        name, port = f"inflight-operator-{number}", FIRST_PORT + number
        command = (
            sys.executable,
            *("-m", "inflight_operator.cli", "run", "--leader-elect"),
            *("--kubeconfig", str(self.kubeconfig)),
            *("--engine-image", ENGINE_IMAGE),
            *("--interval", f"{self.interval:g}"),
            *("--metrics-port", str(port)),
        )
        environment = {"POD_NAME": name, "POD_NAMESPACE": NAMESPACE}
        try:
            self.processes.ensure(Program(name, command, environment))
            yield Operator(name, self._record(name).pid, port)
        finally:
            self.processes.stop(name)

    def check(self, operator: Operator) -> None:
        """Raises ClusterError with the end of its log when the operator has ended."""
        self._record(operator.name)

    def _record(self, name: str) -> Record:
        record = self.processes.running(name)
        if record is None:
            log = self.processes.log(name)
            raise ClusterError(f"{name} ended; its log {log} ends with:\n{tail(log)}")
        return record

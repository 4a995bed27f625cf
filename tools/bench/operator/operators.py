"""Operator processes as a Deployment would run them, but outside of pods."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster import ClusterError
from tools.localcluster.process import Processes, Program, tail

NAMESPACE = "inflight-system"
"""Namespace of the Lease and of the operator's own Secrets."""
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

    def start(self, number: int) -> Operator:
        """Starts operator `number`, also where an earlier one of that number has ended.

        Raises:
            ClusterError: it ended at once; the message has the end of its log.
        """
        name, port = _name(number), FIRST_PORT + number
        command = (
            sys.executable,
            *("-m", "inflight_operator.cli", "run", "--leader-elect"),
            *("--kubeconfig", str(self.kubeconfig)),
            *("--engine-image", ENGINE_IMAGE),
            *("--interval", f"{self.interval:g}"),
            *("--metrics-port", str(port)),
        )
        self.processes.ensure(Program(name, command, {"POD_NAME": name, "POD_NAMESPACE": NAMESPACE}))
        record = self.processes.running(name)
        if record is None:
            raise self.ended(name)
        return Operator(name, record.pid, port)

    def stop(self, number: int) -> None:
        self.processes.stop(_name(number))

    def is_running(self, operator: Operator) -> bool:
        return self.processes.running(operator.name) is not None

    def ended(self, name: str) -> ClusterError:
        """The error that says so, with the end of the log."""
        log = self.processes.log(name)
        return ClusterError(f"{name} ended; its log {log} ends with:\n{tail(log)}")


def _name(number: int) -> str:
    return f"inflight-operator-{number}"

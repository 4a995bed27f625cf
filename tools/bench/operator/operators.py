"""Operator processes as a Deployment would run them, but outside of pods."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tools.localcluster import ClusterError
from tools.localcluster.process import Processes, Program, tail

NAMESPACE, SECOND_NAMESPACE = "inflight-system", "second-system"
"""Namespaces of the two installations."""
ENGINE_IMAGE, NEXT_ENGINE_IMAGE = "localhost/inflight-engine:fake", "localhost/inflight-engine:next"
FIRST_PORT = 8080
LEADER, STANDBY, SECOND = 0, 1, 2
"""Numbers of the operators; the last is that of the second installation."""


@dataclass(frozen=True, slots=True)
class Operator:
    name: str
    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class Operators:
    """Starts operators that take part in one election.

    Attributes:
        namespace: of the Lease and of the operators' own Secrets.
    """

    processes: Processes
    kubeconfig: Path
    interval: float
    namespace: str = NAMESPACE

    def start(self, number: int, *flags: str) -> Operator:
        """Starts operator `number`, also where an earlier one of that number has ended.

        Args:
            flags: further ones, which override the usual.

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
            *flags,
        )
        self.processes.ensure(Program(name, command, {"POD_NAME": name, "POD_NAMESPACE": self.namespace}))
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

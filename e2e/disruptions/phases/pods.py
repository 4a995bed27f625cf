"""Pods of the service that are deleted, killed or hang."""

from __future__ import annotations

import signal
import time

from e2e.disruptions import processes
from e2e.disruptions.phases.base import Phase
from e2e.disruptions.stage import REPLICAS, Stage
from tools.localcluster import kubectl
from tools.testbed.pods import Pod

HANG_SECONDS = 75
"""Longer than the clients' patience, so that requests to a pod that hangs are counted as lost."""


class PodDeleted(Phase):
    name = "pod-deleted"
    about = "kubectl delete of one pod"

    def disturb(self, stage: Stage) -> None:
        victim = stage.victim()
        kubectl("-n", stage.service.namespace, "delete", "pod", victim.name, "--wait=false")
        stage.wait("the pod gone", lambda: victim.uid not in {pod.uid for pod in stage.pods()})
        stage.wait_ready(REPLICAS)


class EngineKilled(Phase):
    name = "engine-killed"
    about = "kill -9 of the engine process of one pod"
    from_node = True

    def disturb(self, stage: Stage) -> None:
        victim = stage.victim()
        engine = processes.engine_process(victim.uid)
        stage.strike(victim, [engine], signal.SIGKILL, whole=False)
        stage.wait("another engine process", lambda: _engine(victim) not in (None, engine))
        stage.wait_ready(REPLICAS)


class PodKilled(Phase):
    name = "pod-killed"
    about = "kill -9 of every process of one pod"
    from_node = True

    def disturb(self, stage: Stage) -> None:
        victim = stage.victim()
        killed = processes.of_pod(victim.uid)
        stage.strike(victim, killed, signal.SIGKILL, whole=True)
        stage.wait("another engine process", lambda: _engine(victim) not in (None, *killed))
        stage.wait_ready(REPLICAS)


class PodHung(Phase):
    """Ends when the engine process was replaced, or after 75 s."""

    name = "pod-hung"
    about = "SIGSTOP to every process of one pod"
    from_node = True

    def __init__(self) -> None:
        self._stopped: list[int] = []

    def disturb(self, stage: Stage) -> None:
        victim = stage.victim()
        self._stopped = processes.of_pod(victim.uid)
        stage.strike(victim, self._stopped, signal.SIGSTOP, whole=True)
        began = time.monotonic()
        stage.wait("another engine process", lambda: _engine(victim) not in (None, *self._stopped), HANG_SECONDS)
        stage.note = f"the engine was replaced {time.monotonic() - began:.0f} s after it hung"
        stage.wait_ready(REPLICAS)

    def restore(self, stage: Stage) -> None:
        processes.send(self._stopped, signal.SIGCONT)


def _engine(pod: Pod) -> int | None:
    try:
        return processes.engine_process(pod.uid)
    except LookupError:
        return None

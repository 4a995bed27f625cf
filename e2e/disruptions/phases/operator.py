"""The operator upgraded and killed."""

from __future__ import annotations

import signal
import time

from e2e.disruptions import processes
from e2e.disruptions.phases.base import Phase
from e2e.disruptions.stage import OPERATOR, Stage, is_available, system_pods
from tools.localcluster import build_image
from tools.testbed.helm import CHART, OPERATOR_NAMESPACE, RELEASE, helm


class OperatorUpgraded(Phase):
    """The other image is built from the same sources with another version in its labels: another digest and tag."""

    name = "operator-upgraded"
    about = "helm upgrade to another operator image, and back"

    def __init__(self) -> None:
        self._image = ""
        self._upgraded = False

    def set_up(self, stage: Stage) -> None:
        version = f"disruption-{time.time():.0f}"
        self._image = build_image("operator", stage.say, tag="disruption", arguments={"VERSION": version})

    def disturb(self, stage: Stage) -> None:
        before = {pod.uid for pod in system_pods(OPERATOR)}
        repository, _, tag = self._image.rpartition(":")
        self._upgraded = True
        helm(
            "upgrade", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE, "--reuse-values",
            "--set", f"image.repository={repository}", "--set", f"image.tag={tag}", "--wait", "--timeout", "3m",
        )  # fmt: skip
        stage.wait("the operator's pods replaced", lambda: not before & {pod.uid for pod in system_pods(OPERATOR)})

    def restore(self, stage: Stage) -> None:
        if self._upgraded:
            helm("rollback", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout", "3m")


class OperatorKilled(Phase):
    name = "operator-killed"
    about = "kill -9 of the operator's processes, all its pods at once"
    from_node = True

    def disturb(self, stage: Stage) -> None:
        before = {pod.uid: pod.restarts for pod in system_pods(OPERATOR)}
        processes.send([pid for uid in before for pid in processes.of_containers(uid)], signal.SIGKILL)
        stage.wait(
            "the operator restarted",
            lambda: all(pod.restarts > before.get(pod.uid, -1) for pod in system_pods(OPERATOR)),
        )
        stage.wait("the operator", lambda: is_available(OPERATOR))

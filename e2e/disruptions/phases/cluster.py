"""Disruptions of the cluster around the service."""

from __future__ import annotations

import time

from e2e.disruptions.phases.base import Phase
from e2e.disruptions.stage import GATEWAY, Stage, system_pods
from tools.localcluster import ClusterError, kubectl, layout
from tools.localcluster.node import OwnNode
from tools.testbed.pods import Pod

AWAY_SECONDS = 60
DRAIN_SECONDS = 20


class ApiServerStopped(Phase):
    name = "api-server-stopped"
    about = f"the API server is away for {AWAY_SECONDS} s"
    from_node = True

    def disturb(self, stage: Stage) -> None:
        node = OwnNode(layout.current(), stage.say)
        node.stop_api_server()
        time.sleep(AWAY_SECONDS)

    def restore(self, stage: Stage) -> None:
        OwnNode(layout.current(), stage.say).start_api_server()


class _Drained(Phase):
    """`kubectl drain` of some pods on the node of one of them.

    With a single node the replacement of the first evicted pod finds no place, so the disruption budget protects the
    second until the drain's time is over; on uncordon the first comes back.
    """

    def __init__(self) -> None:
        self._node = ""

    def selector(self, stage: Stage) -> str:
        """Label selector of the pods."""
        raise NotImplementedError

    def serving(self, stage: Stage) -> list[Pod]:
        """Those of the pods that serve and are not being deleted."""
        raise NotImplementedError

    def disturb(self, stage: Stage) -> None:
        before = {pod.uid: pod for pod in self.serving(stage)}
        self._node = next(iter(before.values())).node
        try:
            kubectl(
                "drain", self._node, f"--pod-selector={self.selector(stage)}", "--delete-emptydir-data",
                "--ignore-daemonsets", f"--timeout={DRAIN_SECONDS}s",
            )  # fmt: skip
            ended = "the drain ended"
        except ClusterError as error:
            if "disruption budget" not in str(error) and "did not complete" not in str(error):
                raise
            ended = f"the budget held the drain for {DRAIN_SECONDS} s"
        kept = before.keys() & {pod.uid for pod in self.serving(stage)}
        stage.note = f"{len(before) - len(kept)} of {len(before)} pods evicted, {ended}"
        if len(kept) == len(before):
            raise RuntimeError("the drain evicted no pod")
        self.restore(stage)
        stage.wait("as many pods as before", lambda: len(self.serving(stage)) == len(before))

    def restore(self, stage: Stage) -> None:
        if self._node:
            kubectl("uncordon", self._node)


class NodeDrained(_Drained):
    name = "node-drained"
    about = "kubectl drain against the disruption budget, then uncordon"

    def selector(self, stage: Stage) -> str:
        return f"inflight.dev/service={stage.service.name}"

    def serving(self, stage: Stage) -> list[Pod]:
        return stage.ready_pods()


class GatewayDrained(_Drained):
    name = "gateway-drained"
    about = "kubectl drain of the gateway's pods against their disruption budget, then uncordon"
    of_gateway = True

    def selector(self, stage: Stage) -> str:
        return f"app.kubernetes.io/name={GATEWAY}"

    def serving(self, stage: Stage) -> list[Pod]:
        return [pod for pod in system_pods(GATEWAY) if pod.ready]

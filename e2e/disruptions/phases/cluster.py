"""What the cluster does around the service."""

from __future__ import annotations

import time

from e2e.cluster import ClusterError, kubectl, layout
from e2e.cluster.node import OwnNode
from e2e.disruptions.phases.base import Phase
from e2e.disruptions.stage import REPLICAS, Stage

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


class NodeDrained(Phase):
    """`kubectl drain` of the service's pods on the node of one of them.

    With a single node the replacement of the first evicted pod finds no place, so the disruption budget protects the
    second until the drain's time is over; on uncordon the first comes back.
    """

    name = "node-drained"
    about = "kubectl drain against the disruption budget, then uncordon"

    def __init__(self) -> None:
        self._node = ""

    def disturb(self, stage: Stage) -> None:
        namespace, victim = stage.service.namespace, stage.victim()
        node = kubectl("-n", namespace, "get", "pod", victim.name, "-o", "jsonpath={.spec.nodeName}")
        self._node = node
        before = {pod.uid for pod in stage.pods()}
        try:
            kubectl(
                "drain", node, f"--pod-selector=inflight.dev/service={stage.service.name}", "--delete-emptydir-data",
                "--ignore-daemonsets", f"--timeout={DRAIN_SECONDS}s",
            )  # fmt: skip
            ended = "the drain ended"
        except ClusterError as error:
            if "disruption budget" not in str(error) and "did not complete" not in str(error):
                raise
            ended = f"the budget held the drain for {DRAIN_SECONDS} s"
        kept = before & {pod.uid for pod in stage.ready_pods()}
        stage.note = f"{len(before) - len(kept)} of {len(before)} pods evicted, {ended}"
        if len(kept) == len(before):
            raise RuntimeError("the drain evicted no pod")
        self.restore(stage)
        stage.wait_ready(REPLICAS)

    def restore(self, stage: Stage) -> None:
        if self._node:
            kubectl("uncordon", self._node)

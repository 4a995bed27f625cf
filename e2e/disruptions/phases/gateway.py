"""The gateway killed, rolled and deleted; the drain of one of its pods is in `cluster`."""

from __future__ import annotations

import signal

from e2e.disruptions import processes
from e2e.disruptions.phases.base import Phase
from e2e.disruptions.stage import GATEWAY, Stage, is_available, system_pods
from tools.localcluster import kubectl
from tools.testbed.helm import OPERATOR_NAMESPACE


class GatewayKilled(Phase):
    """Streams on the killed pod fail: nothing else knows what their clients have. New requests go to the other pod."""

    name = "gateway-killed"
    about = "kill -9 of every process of one gateway pod"
    from_node = True
    of_gateway = True

    def disturb(self, stage: Stage) -> None:
        victim, *others = system_pods(GATEWAY)
        if not others:
            raise RuntimeError("the gateway has one pod only")
        stage.strike_gateway(victim, processes.of_pod(victim.uid), signal.SIGKILL)
        stage.wait("the pod's containers restarted", lambda: _restarts(victim.uid) > victim.restarts)
        stage.wait("the gateway", lambda: is_available(GATEWAY))


class PickerKilled(Phase):
    """Envoy and relay of the pod go on without it: running streams are not touched. As the pod is not ready meanwhile,
    new connections go to the other pod."""

    name = "picker-killed"
    about = "kill -9 of the picker of one gateway pod"
    from_node = True
    of_gateway = True

    def disturb(self, stage: Stage) -> None:
        victim = system_pods(GATEWAY)[0]
        pickers = processes.with_argument(victim.uid, "picker")
        if not pickers:
            raise RuntimeError("no picker was found")
        processes.send(pickers, signal.SIGKILL)
        stage.wait("the picker restarted", lambda: _restarts(victim.uid) > victim.restarts)
        stage.wait("the gateway", lambda: is_available(GATEWAY))


class GatewayRolled(Phase):
    name = "gateway-rolled"
    about = "kubectl rollout restart of the gateway"
    of_gateway = True

    def disturb(self, stage: Stage) -> None:
        before = {pod.uid for pod in system_pods(GATEWAY)}
        kubectl("-n", OPERATOR_NAMESPACE, "rollout", "restart", f"deployment/{GATEWAY}")
        stage.wait("the gateway's pods replaced", lambda: not before & {pod.uid for pod in system_pods(GATEWAY)})
        stage.wait("the gateway", lambda: is_available(GATEWAY))


class GatewayDeleted(Phase):
    name = "gateway-deleted"
    about = "kubectl delete of one gateway pod"
    of_gateway = True

    def disturb(self, stage: Stage) -> None:
        victim = system_pods(GATEWAY)[0]
        kubectl("-n", OPERATOR_NAMESPACE, "delete", "pod", victim.name, "--wait=false")
        stage.wait("another pod", lambda: victim.uid not in {pod.uid for pod in system_pods(GATEWAY)})
        stage.wait("the gateway", lambda: is_available(GATEWAY))


def _restarts(uid: str) -> int:
    """Of the containers of the gateway pod `uid`; -1 where it is gone."""
    return next((pod.restarts for pod in system_pods(GATEWAY) if pod.uid == uid), -1)

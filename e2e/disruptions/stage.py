"""The service under traffic and the cluster around it: their initial state, their state now, and the way back."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from e2e.disruptions import processes
from e2e.disruptions.verdict import ERROR_SECONDS, Blow
from tools.localcluster import ClusterError, choose, kubectl
from tools.localcluster.choose import Choice
from tools.localcluster.progress import Progress
from tools.testbed.helm import OPERATOR_NAMESPACE
from tools.testbed.numbers import continuations, owner
from tools.testbed.pods import Pod, pods
from tools.testbed.service import Service, is_ready

OPERATOR = "inflight-operator"
GATEWAY = "inflight-gateway"
REPLICAS = 2
WAIT_SECONDS = 180


def specification(**changes: Any) -> dict[str, Any]:
    """The spec of the service at its start, with top-level fields replaced: small, and what two CPU cores hold."""
    start = {
        "model": {"source": "builtin://smollm2"},
        "accelerator": {"count": 0},
        "engine": {"quantization": "int8", "maxNumSeqs": 32},
        "scaling": replicas(REPLICAS),
        "tuning": {"mode": "Off"},
    }
    return start | changes


def replicas(number: int) -> dict[str, Any]:
    """Returns a `spec.scaling` with exactly this number of replicas."""
    return {"minReplicas": number, "maxReplicas": number}


class Stage:
    """A service in a namespace.

    Attributes:
        image: image of the clients.
        say: receives progress lines.
        gateway: the service is behind the gateway.
        spec: top-level fields of the service's spec in place of those that it has at its start.
        wait_seconds: longest wait for a state.
        blow: the kill of the running phase, if it has one that excuses lost requests.
        note: remark of the running phase, for its row.
        way_back: undoes the changes of the running phase outside the service's spec.
    """

    def __init__(
        self,
        service: Service,
        image: str,
        say: Progress,
        *,
        gateway: bool = False,
        spec: Mapping[str, Any] | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.spec = spec or {}
        self.wait_seconds = wait_seconds
        self.service = service
        self.image = image
        self.say = say
        self.gateway = gateway
        self.blow: Blow | None = None
        self.note = ""
        self.way_back = ExitStack()

    def begin(self) -> None:
        """Forget what an earlier phase left here."""
        self.blow, self.note, self.way_back = None, "", ExitStack()

    def on_way_back(self, undo: Callable[..., object], *arguments: object) -> None:
        """Call `undo` once after the phase, whatever happens in it from now on."""
        self.way_back.callback(undo, *arguments)

    def apply(self, **changes: Any) -> None:
        """Apply the service with top-level fields of its spec replaced; without any: as at the start."""
        gateway = {"gateway": {"enabled": True}} if self.gateway else {}
        self.service.apply(specification(**{**gateway, **self.spec, **changes}))

    def settle(self) -> None:
        """Bring service and operator to their start, and wait until they are there."""
        self.apply()
        self.wait_available(OPERATOR)
        if self.gateway:
            self.wait_available(GATEWAY)
        self.wait(f"the service with {REPLICAS} ready pods and no other", self._is_at_start)

    def _is_at_start(self) -> bool:
        ready, pods = is_ready(self.service.status()), self.pods()
        return ready and self.rolled_out() and len(pods) == REPLICAS and all(pod.ready for pod in pods)

    def rolled_out(self) -> bool:
        """Returns whether the operator has observed the present spec, and the Deployment's pods are of its template."""
        service = _get(self.service.namespace, "inferenceservice", self.service.name)
        seen = service.get("status", {}).get("observedGeneration")
        return bool(seen == service["metadata"]["generation"]) and is_available(
            self.service.name, self.service.namespace
        )

    def cluster_ip(self) -> str:
        """Returns the address of its Service."""
        return str(_get(self.service.namespace, "service", self.service.name)["spec"]["clusterIP"])

    def destinations(self) -> set[str]:
        """Returns the addresses of the pods that its Service leads to."""
        label = f"kubernetes.io/service-name={self.service.name}"
        slices = json.loads(kubectl("-n", self.service.namespace, "get", "endpointslices", "-l", label, "-o", "json"))
        return {
            address
            for one in slices["items"]
            for endpoint in one.get("endpoints") or ()
            if endpoint.get("conditions", {}).get("ready", True)
            for address in endpoint["addresses"]
        }

    def pods(self) -> list[Pod]:
        """All its pods, those that are being deleted included; by name."""
        return pods(self.service.namespace, f"inflight.dev/service={self.service.name}")

    def ready_pods(self) -> list[Pod]:
        """Pods that serve and are not being deleted."""
        return [pod for pod in self.pods() if pod.ready and not pod.leaving]

    def wait_ready(self, number: int) -> None:
        """Waits until exactly so many pods serve, and none is starting or leaving."""
        self.wait(f"{number} ready pods", lambda: len(self.ready_pods()) == len(self.pods()) == number)

    def wait_available(self, program: str) -> None:
        """Waits until the operator's or the gateway's Deployment is complete and all its pods are ready."""
        self.wait(f"the {program.removeprefix('inflight-')}", lambda: is_available(program))

    @contextmanager
    def replaced(self, name: str, pods: Callable[[], list[Pod]]) -> Iterator[None]:
        """Waits after the block until none of the `pods` from before it is left."""
        before = {pod.uid for pod in pods()}
        yield
        self.wait(f"{name} replaced", lambda: not before & {pod.uid for pod in pods()})

    def victim(self) -> Pod:
        """The pod that a phase hurts."""
        return self.ready_pods()[0]

    def strike(self, pod: Pod, pids: Collection[int], sent: signal.Signals, *, whole: bool) -> None:
        """Send a signal to processes of an engine's pod. Args: whole: they are all of its processes.

        From now on its requests may fail; behind the gateway they may not, as they go on at another pod.
        """
        self.blow = None if self.gateway else Blow(time.time(), pod.name, pod.address, whole)
        processes.send(pids, sent)

    def strike_gateway(self, pod: Pod, sent: signal.Signals, within: float = ERROR_SECONDS) -> None:
        """Send a signal to all processes of a gateway pod; from now on requests on it may fail.

        Args:
            within: seconds in which they have to.
        """
        pids = processes.of_pod(pod.uid)
        if sent == signal.SIGSTOP:
            self.on_way_back(processes.send, pids, signal.SIGCONT)
        self.blow = Blow(time.time(), pod.name, pod.address, whole=True, within=within)
        processes.send(pids, sent)

    def gateway_pods(self) -> list[Pod]:
        """Returns the gateway's pods that serve, the one that owns the service first.

        Raises:
            LookupError: they do not agree on the owner, or there is one pod only.
        """
        serving = [pod for pod in system_pods(GATEWAY) if pod.ready]
        owners = {owner(pod.name, self.service) for pod in serving}
        if len(serving) < 2 or len(owners) != 1 or not owners & {pod.name for pod in serving}:
            raise LookupError(f"of {len(serving)} gateway pods, those say that the service is owned by {owners}")
        return sorted(serving, key=lambda pod: pod.name not in owners)

    def continued(self) -> int:
        """Returns the answers of the service that were continued; 0 without a gateway."""
        return continued(self.service) if self.gateway else 0

    def wait(self, goal: str, holds: Callable[[], bool], seconds: float | None = None) -> None:
        """Poll twice a second until it `holds`. While the API server does not answer, it does not hold.

        Raises:
            TimeoutError: it did not hold in time.
        """
        seconds = self.wait_seconds if seconds is None else seconds
        deadline = time.monotonic() + seconds
        complaint = ""
        while True:
            try:
                if holds():
                    return
            except ClusterError as error:
                complaint = f": {error}"
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s for {goal}{complaint}")
            time.sleep(0.5)


def is_available(deployment: str, namespace: str = OPERATOR_NAMESPACE) -> bool:
    """Returns whether a Deployment has only pods of the newest template, and all of them are ready."""
    found = _get(namespace, "deployment", deployment)
    status, wanted = found.get("status", {}), found["spec"]["replicas"]
    return bool(
        status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("updatedReplicas") == status.get("replicas") == status.get("availableReplicas") == wanted
    )


def _get(namespace: str, kind: str, name: str) -> dict[str, Any]:
    return dict(json.loads(kubectl("-n", namespace, "get", kind, name, "-o", "json")))


def system_pods(program: str) -> list[Pod]:
    """Pods of the operator or the gateway that are not being deleted, by name."""
    found = pods(OPERATOR_NAMESPACE, f"app.kubernetes.io/name={program}")
    return [pod for pod in found if not pod.leaving]


def continued(service: Service) -> int:
    """Answers of the service that were continued at another engine, by the counters of all gateway pods."""
    return sum(continuations(pod.name, service) for pod in system_pods(GATEWAY))


def node_problem() -> str | None:
    """Why faults cannot be made from this machine; None when the cluster's node runs on it."""
    if choose.current() is not Choice.OWN_NODE:
        return "made from the node itself: it needs the local cluster's own node"
    return None

"""An InferenceService in the cluster, read through kubectl."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import API_VERSION, KIND
from tools.localcluster import kubectl
from tools.testbed.pods import Pod, pods


@dataclass(frozen=True)
class ServiceView:
    """A service's status at one moment. Live numbers are on the operator's metrics page: `tools.testbed.numbers`.

    Attributes:
        replicas: ordered by the operator; ready_replicas: pods that serve.
        limits: `max_num_seqs` and `max_num_batched_tokens` in force.
        decisions: oldest first.
        conditions: by type.
    """

    replicas: int
    ready_replicas: int
    limits: tuple[int, int] | None
    decisions: tuple[dict[str, Any], ...]
    conditions: dict[str, dict[str, Any]]

    @property
    def ready(self) -> bool:
        return self.conditions.get("Ready", {}).get("status") == "True"

    @property
    def message(self) -> str:
        """The sentence that says why it is not Ready, or that it is."""
        return str(self.conditions.get("Ready", {}).get("message", "not seen by the operator yet"))


@dataclass(frozen=True)
class Service:
    """The name of a service in the cluster."""

    name: str
    namespace: str = "default"

    @property
    def url(self) -> str:
        """URL of the service inside the cluster."""
        return f"http://{self.name}.{self.namespace}.svc"

    def manifest(self, spec: Mapping[str, Any]) -> Manifest:
        """The InferenceService."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": dict(spec),
        }

    def apply(self, spec: Mapping[str, Any]) -> None:
        """Create or change it. Raises ClusterError where the cluster rejects it."""
        kubectl("apply", "-f", "-", input=json.dumps(self.manifest(spec)))

    def view(self) -> ServiceView:
        """Returns the present status."""
        manifest = json.loads(kubectl("-n", self.namespace, "get", "inferenceservice", self.name, "-o", "json"))
        return view_of(manifest.get("status", {}))

    def pods(self) -> list[Pod]:
        """Returns its pods that are not being deleted."""
        return [pod for pod in pods(self.namespace, f"inflight.dev/service={self.name}") if not pod.leaving]

    def runtime_config(self, pod: str) -> dict[str, Any]:
        """The configuration that a pod reports, through the API server's proxy."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:8000/proxy/v1/runtime_config"
        return dict(json.loads(kubectl("get", "--raw", path)))

    def wait(
        self,
        goal: str,
        holds: Callable[[ServiceView], bool],
        *,
        seconds: float,
        saying: Callable[[str], None] = lambda message: None,
        interval: float = 1.0,
    ) -> ServiceView:
        """Poll the status until it `holds`. `saying` receives each new reason why the service is not Ready.

        Raises:
            TimeoutError: it did not hold in time; the message has the last view.
        """
        deadline = time.monotonic() + seconds
        last_message = ""
        while True:
            view = self.view()
            if holds(view):
                return view
            if view.message != last_message:
                last_message = view.message
                saying(last_message)
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s for {goal}; last seen: {view}")
            time.sleep(interval)


def view_of(status: dict[str, Any]) -> ServiceView:
    """Reads a resource's `status`."""
    limits = status.get("limits")
    return ServiceView(
        replicas=status.get("replicas", 0),
        ready_replicas=status.get("readyReplicas", 0),
        limits=(limits["maxNumSeqs"], limits["maxNumBatchedTokens"]) if limits else None,
        decisions=tuple(status.get("decisions") or ()),
        conditions={condition["type"]: condition for condition in status.get("conditions") or ()},
    )

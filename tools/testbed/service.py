"""An InferenceService in the cluster, read through kubectl."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import API_VERSION, KIND, pod_labels, selector_string
from inflight_base.manifest.pods import condition
from tools.localcluster import kubectl
from tools.testbed.pods import Pod, pods

Status = Mapping[str, Any]
"""A service's `status` at one moment. Live numbers are on the operator's metrics page: `tools.testbed.numbers`."""


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

    def status(self) -> Status:
        """Returns the present status; empty before the operator has written it."""
        manifest = json.loads(kubectl("-n", self.namespace, "get", "inferenceservice", self.name, "-o", "json"))
        return dict(manifest.get("status", {}))

    def pods(self) -> list[Pod]:
        """Returns its engines' pods that are not being deleted."""
        return [pod for pod in pods(self.namespace, selector_string(pod_labels(self.name))) if not pod.leaving]

    def runtime_config(self, pod: str) -> dict[str, Any]:
        """The configuration that a pod reports, through the API server's proxy."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:8000/proxy/v1/runtime_config"
        return dict(json.loads(kubectl("get", "--raw", path)))

    def wait(
        self,
        goal: str,
        holds: Callable[[Status], bool],
        *,
        seconds: float,
        saying: Callable[[str], None] = lambda message: None,
        interval: float = 1.0,
    ) -> Status:
        """Poll the status until it `holds`. `saying` receives each new reason why the service is not Ready.

        Raises:
            TimeoutError: it did not hold in time; the message has the last status.
        """
        deadline = time.monotonic() + seconds
        last_message = ""
        while True:
            status = self.status()
            if holds(status):
                return status
            message = condition(status, "Ready").get("message", "not seen by the operator yet")
            if message != last_message:
                last_message = message
                saying(message)
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s for {goal}; last seen: {status}")
            time.sleep(interval)


def is_ready(status: Status) -> bool:
    """Returns whether the service is Ready."""
    return condition(status, "Ready").get("status") == "True"

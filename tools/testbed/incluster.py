"""Runs a Python program of this repository in a separate pod, as a client inside the cluster."""

from __future__ import annotations

import base64
import codecs
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tools.localcluster import kubeconfig_path, kubectl
from tools.localcluster.programs.kubectl_program import binary, environment

START_SECONDS = 180


@dataclass(frozen=True)
class ScriptPod:
    """A pod that runs, or ran, a script."""

    namespace: str
    name: str

    def follow(self) -> Iterator[str]:
        """Yields the pod's output as it comes, in pieces, until it ends."""
        command = [binary(), "-n", self.namespace, "logs", "-f", self.name]
        kubeconfig = environment(kubeconfig_path())
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=kubeconfig) as process:
            if process.stdout is None:
                raise AssertionError("stdout is a pipe")
            decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end inside a character
            while piece := os.read(process.stdout.fileno(), 4096):
                yield decoder.decode(piece)

    def exit_code(self, seconds: float = 30) -> int:
        """Returns the pod's exit code once it has ended.

        Raises:
            TimeoutError: it runs on.
        """
        state = _wait_for_state(self, "ended", ("terminated",), seconds)
        return int(state["terminated"]["exitCode"])


@contextmanager
def script_pod(
    module: str, code: bytes, arguments: list[str], *, name: str, image: str, namespace: str
) -> Iterator[ScriptPod]:
    """Start `python -m MODULE ARGUMENTS` in a pod from `image`; pod and code are removed afterwards.

    Args:
        code: a zip file with the module and what it imports that the image lacks.

    Raises:
        TimeoutError: the pod does not start; the message has the kubelet's reason.
    """
    pod = ScriptPod(namespace, name)
    manifests = {"apiVersion": "v1", "kind": "List", "items": _manifests(pod, module, code, arguments, image)}
    _delete(pod)
    kubectl("apply", "-f", "-", input=json.dumps(manifests))
    try:
        _wait_for_state(pod, "started", ("running", "terminated"), START_SECONDS)
        yield pod
    finally:
        _delete(pod)


def _manifests(pod: ScriptPod, module: str, code: bytes, arguments: list[str], image: str) -> list[dict[str, Any]]:
    metadata = {"name": pod.name, "namespace": pod.namespace}
    container = {
        "name": "script",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-m", module, *arguments],
        "env": [{"name": "PYTHONPATH", "value": "/script/code.zip"}],
        "volumeMounts": [{"name": "script", "mountPath": "/script"}],
        # Without a request the engines on the same node would leave the script no CPU to keep its connections alive.
        "resources": {"requests": {"cpu": "200m", "memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "script", "configMap": {"name": pod.name}}],
        "containers": [container],
    }
    data = {"code.zip": base64.b64encode(code).decode()}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    ]


def _wait_for_state(pod: ScriptPod, event: str, states: tuple[str, ...], seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while not (state := _container_state(pod)).keys() & set(states):
        if time.monotonic() > deadline:
            why = state.get("waiting", "running" if state else "not scheduled")
            raise TimeoutError(f"pod {pod.name} has not {event} after {seconds:.0f} s: {why}")
        time.sleep(0.2)
    return state


def _container_state(pod: ScriptPod) -> dict[str, Any]:
    manifest = json.loads(kubectl("-n", pod.namespace, "get", "pod", pod.name, "-o", "json"))
    statuses = manifest["status"].get("containerStatuses")
    return dict(statuses[0]["state"]) if statuses else {}


def _delete(pod: ScriptPod) -> None:
    kubectl("-n", pod.namespace, "delete", "pod,configmap", pod.name, "--ignore-not-found", "--now")

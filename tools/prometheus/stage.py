"""Services under traffic that produces data for every panel."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tools.localcluster import ClusterError, kubectl
from tools.localcluster.progress import Progress
from tools.testbed.load_pod import driver_pod
from tools.testbed.service import Service

READY_SECONDS = 240
MARK, MARKED = "made-for", "dashboards"
"""Label of a namespace that may be deleted."""

# A small KV cache with swap, and a short queue: requests are preempted, swapped and rejected under load.
BUSY: Mapping[str, Any] = {
    "model": {"source": "builtin://smollm2"},
    "accelerator": {"count": 0},
    "engine": {
        "quantization": "int8",
        "maxModelLen": 1024,
        "kvCache": {"memory": "40Mi", "swap": "64Mi"},
        "maxQueuedRequests": 24,
    },
    "slo": {"ttftP95": "1s", "tpotP95": "100ms"},
    "scaling": {"maxReplicas": 2, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}},
    "cost": {"pricePerReplicaHour": "0.80", "currency": "USD"},
}
STEADY: Mapping[str, Any] = {
    "model": {"source": "builtin://smollm2"},
    "accelerator": {"count": 0},
    "engine": {"quantization": "int8", "maxNumSeqs": 32},
    "slo": {"ttftP95": "3s", "tpotP95": "200ms"},
    "scaling": {"maxReplicas": 1},
    "cost": {"pricePerReplicaHour": "0.80", "currency": "USD"},
}


@dataclass(frozen=True, slots=True)
class Load:
    """Traffic from `after` seconds on, with options of `tools.load.driver`."""

    after: float
    arguments: Sequence[str]


@dataclass(frozen=True, slots=True)
class Part:
    """A service and its traffic."""

    name: str
    spec: Mapping[str, Any]
    loads: Sequence[Load] = field(default_factory=tuple)


def parts(seconds: float) -> list[Part]:
    """Two services: one with a steady load and a burst over its middle; behind the gateway, one with long prompts."""

    def load(share_begin: float, share_end: float, *arguments: str) -> Load:
        lasts = (share_end - share_begin) * seconds
        return Load(share_begin * seconds, (f"--seconds={lasts:.0f}", "--requests=1000000", *arguments))

    return [
        Part(
            "chat",
            BUSY,
            (
                load(0, 1, "--clients=16", "--rate=1", "--prompt-words=50", "--max-tokens=32"),
                load(0.25, 0.6, "--clients=40", "--rate=4", "--prompt-words=60", "--max-tokens=48", "--seed=1"),
            ),
        ),
        Part(
            "summaries",
            {**STEADY, "gateway": {"enabled": True}},
            (
                load(0, 0.7, "--clients=4", "--rate=0.3", "--prompt-words=250", "--max-tokens=24", "--seed=2"),
                load(0.6, 1, "--clients=6", "--rate=0.7", "--prompt-words=200", "--max-tokens=24", "--seed=3"),
            ),
        ),
    ]


@contextmanager
def serving(shown: Sequence[Part], namespace: str, progress: Progress) -> Iterator[list[Service]]:
    """The services in a namespace of their own, Ready, while the block runs.

    Raises:
        ClusterError: the cluster rejects an object.
        TimeoutError: a service does not become Ready.
    """
    _new_namespace(namespace)
    try:
        services = [Service(part.name, namespace) for part in shown]
        for part, service in zip(shown, services, strict=True):
            service.apply(part.spec)
        for service in services:
            service.wait(
                f"{service.name} to be Ready",
                lambda view: view.ready,
                seconds=READY_SECONDS,
                saying=lambda text, name=service.name: progress(f"{name}: {text}"),  # type: ignore[misc]
            )
        yield services
    finally:
        kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait=false")


def _new_namespace(name: str) -> None:
    """An empty namespace, replacing one left by an earlier run.

    Raises:
        ClusterError: a service of that name exists and is not the stage's own.
    """
    marked = f"jsonpath={{.metadata.labels.{MARK}}}"
    if kubectl("get", "namespace", name, "--ignore-not-found", "-o", "name"):
        if kubectl("get", "namespace", name, "-o", marked) != MARKED:
            raise ClusterError(f"the cluster has a namespace {name} already: choose another one with --namespace")
        kubectl("delete", "namespace", name, "--ignore-not-found", "--wait")
    metadata = {"name": name, "labels": {MARK: MARKED}}
    kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))


def run_traffic(shown: Sequence[Part], namespace: str, seconds: float, progress: Progress, *, image: str) -> None:
    """Send the traffic of all parts for so many seconds."""
    due = sorted(
        ((load.after, part.name, number, load) for part in shown for number, load in enumerate(part.loads)),
        key=lambda one: one[:3],
    )
    begun = time.monotonic()
    with ExitStack() as running:
        for after, name, number, load in due:
            time.sleep(max(0.0, begun + after - time.monotonic()))
            progress(f"traffic to {name}: {' '.join(load.arguments)}")
            service = Service(name, namespace)
            running.enter_context(driver_pod(service, f"load-{name}-{number}", list(load.arguments), image=image))
        time.sleep(max(0.0, begun + seconds - time.monotonic()))

"""Parts of a pod that its engine type decides, and what the types share."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import HTTP_PORT_NAME
from inflight_operator.api.resolve import MODEL_FOLDER, downloads_model
from inflight_operator.api.types import InferenceService
from inflight_operator.render.admin_token import SECRET_FOLDER, TOKEN_KEY
from inflight_operator.render.limits import LIMITS_FILE

SCRATCH = "/tmp"
"""The only writable folder of a container, unless it downloads a model; HOME as well."""

LIMITS_FOLDER = "/etc/inflight/limits"
LIMITS_PATH = f"{LIMITS_FOLDER}/{LIMITS_FILE}"

PROPAGATION_SECONDS = 5
"""Time for routers to learn that a pod is terminating; it keeps serving for that time."""

STARTUP_PERIOD_SECONDS = 2

KILL_GRACE_SECONDS = 2
"""Seconds from SIGTERM to SIGKILL after a failed liveness or start-up probe. The pod's own grace period is for requests
that still run to their end, of which a container that hangs has none. The kubelet waits two seconds at least."""

RESTRICTED: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Security context of every container."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of the pod and its mount in the engine's container.

    Attributes:
        name: of both.
        source: None: it is one of `template.volumes`.
        folder: folder of the volume that is mounted, which the kubelet makes; empty: the whole volume.
    """

    name: str
    source: Manifest | None
    path: str
    read_only: bool = True
    folder: str = ""

    @property
    def volume(self) -> Manifest:
        return {"name": self.name, **(self.source or {})}

    @property
    def mount(self) -> Manifest:
        return {
            "name": self.name,
            "mountPath": self.path,
            **({"subPath": self.folder} if self.folder else {}),
            **({"readOnly": True} if self.read_only else {}),
        }


@dataclass(frozen=True, slots=True)
class EngineContainer:
    """The container `engine` of a type.

    Attributes:
        image: image of the container.
        start: `command` and `args`.
        ports: ports by name.
        environment: environment variables by name, beside HOME.
        resources: requests and limits.
        probes: `startupProbe`, `readinessProbe` and `livenessProbe`.
        stop: `lifecycle`; empty: SIGTERM is sent at once.
        admin: the operator changes its limits: it has the admin token and the file with the limits.
        shared_memory: its processes exchange tensors on CPU too.
        volumes: further volumes.
        init_containers: containers that run before it.
    """

    image: str
    start: Manifest
    ports: dict[str, int]
    environment: dict[str, Manifest]
    resources: Manifest
    probes: Manifest
    stop: Manifest = field(default_factory=dict)
    admin: bool = True
    shared_memory: bool = False
    volumes: tuple[Volume, ...] = ()
    init_containers: tuple[Manifest, ...] = ()


ADMIN_ENVIRONMENT: dict[str, Manifest] = {
    "INFLIGHT_ADMIN_TOKEN_FILE": {"value": f"{SECRET_FOLDER}/{TOKEN_KEY}"},
    # The engine accepts a signed admin call only if it names this pod.
    "INFLIGHT_POD_UID": {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
}


def keeps_serving(drain_seconds: int = 0) -> Manifest:
    """`lifecycle` of an engine that takes no requests after SIGTERM: routers still send them for a while.

    Args:
        drain_seconds: time for requests in flight, of an engine that may not finish them after SIGTERM.
    """
    return {"preStop": {"sleep": {"seconds": PROPAGATION_SECONDS + drain_seconds}}}


def hub_environment(service: InferenceService) -> dict[str, Manifest]:
    """Variables of the Hugging Face libraries: where models are kept, and that a pod that must not is to fail at
    once."""
    if downloads_model(service.spec.model.source):
        return {"HF_HOME": {"value": f"{MODEL_FOLDER}/huggingface"}}
    # The network policy blocks egress of these pods: a call to the hub would time out instead of failing at once.
    return {"HF_HOME": {"value": f"{SCRATCH}/huggingface"}, "HF_HUB_OFFLINE": {"value": "1"}}


def startup_probe(path: str, limit_seconds: int) -> Manifest:
    """The probe of a loading engine, which bounds the time that it takes."""
    return {
        "httpGet": {"path": path, "port": HTTP_PORT_NAME},
        "periodSeconds": STARTUP_PERIOD_SECONDS,
        "timeoutSeconds": 2,
        "failureThreshold": -(-limit_seconds // STARTUP_PERIOD_SECONDS),
        "terminationGracePeriodSeconds": KILL_GRACE_SECONDS,
    }


def readiness_probe(path: str) -> Manifest:
    """Out of the endpoints within 4 s (1 + 3) without an answer, and 1 s after a 503. One probe with a long timeout
    rather than three with a short one: an API process on a busy CPU that takes 1 or 2 s for each answer serves on, and
    removing pods from an overloaded fleet makes the others slower."""
    return {
        "httpGet": {"path": path, "port": HTTP_PORT_NAME},
        "periodSeconds": 1,
        "timeoutSeconds": 3,
        "failureThreshold": 1,
    }


def third_party_probes(ready: str, live: str, startup_limit_seconds: int) -> Manifest:
    """Probes of a server that is not Inflight's.

    How long such a server may be busy without an answer is not known, and a restart loses all its requests, so it is
    restarted after a minute without an answer (10 + 5 * 10). A process that has ended is restarted at once.
    """
    return {
        "startupProbe": startup_probe(ready, startup_limit_seconds),
        "readinessProbe": readiness_probe(ready),
        "livenessProbe": {
            "httpGet": {"path": live, "port": HTTP_PORT_NAME},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 5,
            "terminationGracePeriodSeconds": KILL_GRACE_SECONDS,
        },
    }

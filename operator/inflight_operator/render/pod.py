"""The engine's pod: one container, Pod Security `restricted`, nothing writable but its own bounded volumes."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    ENGINE_CONTAINER,
    ENGINE_PORT,
    HTTP_PORT_NAME,
    child_labels,
    child_names,
)
from inflight_base.manifest.units import parse_duration, parse_quantity
from inflight_operator.api.resolve import MODEL_FOLDER, claim_and_folder, model_argument, served_name
from inflight_operator.render.admin_token import SECRET_FOLDER, TENANT_KEY, TOKEN_KEY
from inflight_operator.render.engine_flags import constant_flags, engine_flags, seconds
from inflight_operator.render.limits import LIMITS_FILE
from inflight_operator.render.networkpolicy import downloads_model
from inflight_operator.render.observability import observability_flags, observability_of, trace_environment
from inflight_operator.render.plan import EngineObservability, Settings
from inflight_operator.render.service import behind_gateway
from inflight_operator.render.template import merge_template

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

USER_ID = 65532
"""The non-root user and group of the engine image; the group owns mounted files."""

_LIMITS_FOLDER = "/etc/inflight/limits"
_SCRATCH = "/tmp"

SCRATCH_SIZE = "4Gi"
"""Bound of /tmp: compiled kernels and caches of libraries are some hundred MB, a recording a few GB in a day."""

SHARED_MEMORY_SIZE = "1Gi"
"""Bound of /dev/shm, through which the processes of one engine exchange tensors; it counts as memory of the pod."""

PROPAGATION_SECONDS = 5
"""Time for routers to learn that a pod is terminating; it keeps serving for that time."""

MARGIN_SECONDS = 20
"""Seconds for the engine to notice, close its sockets and exit, on a busy machine."""

STARTUP_PERIOD_SECONDS = 2

KILL_GRACE_SECONDS = 2
"""Seconds from SIGTERM to SIGKILL after a failed liveness or start-up probe. The pod's own grace period is for requests
that still run to their end, of which a container that hangs has none. The kubelet waits two seconds at least."""


def startup_limit_seconds(service: InferenceService) -> int:
    """Seconds for an engine to download and load its model before it is restarted."""
    return math.ceil(parse_duration(service.spec.rollout.startup_timeout))


def pod_template(service: InferenceService, settings: Settings) -> Manifest:
    """The pod template. It depends only on the spec and the settings, never on decisions or measurements."""
    name = service.metadata.name
    names = child_names(name)
    volumes: list[Manifest] = [
        {"name": "inflight-scratch", "emptyDir": {"sizeLimit": SCRATCH_SIZE}},
        {"name": "inflight-limits", "configMap": {"name": names.limits}},
        {"name": "inflight-admin", "secret": {"secretName": names.admin_token, "defaultMode": 0o440}},
    ]
    mounts: list[Manifest] = [
        {"name": "inflight-scratch", "mountPath": _SCRATCH},
        {"name": "inflight-limits", "mountPath": _LIMITS_FOLDER, "readOnly": True},
        {"name": "inflight-admin", "mountPath": SECRET_FOLDER, "readOnly": True},
    ]
    if service.spec.accelerator.count:
        volumes.append({"name": "inflight-shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY_SIZE}})
        mounts.append({"name": "inflight-shm", "mountPath": "/dev/shm"})
    if claimed := claim_and_folder(service.spec.model.source):
        claim = {"claimName": claimed[0], "readOnly": True}
        volumes.append({"name": "inflight-model", "persistentVolumeClaim": claim})
        mounts.append({"name": "inflight-model", "mountPath": MODEL_FOLDER, "readOnly": True})
    if downloads_model(service):
        volumes.append({"name": "inflight-model", "emptyDir": {"sizeLimit": download_size(service)}})
        mounts.append({"name": "inflight-model", "mountPath": MODEL_FOLDER})
    pod: Manifest = {
        "metadata": {"labels": child_labels(name)},
        "spec": {
            # Explicit, since the API server keeps an earlier account when the field is only removed.
            "serviceAccountName": "default",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace_period_seconds(service.spec.rollout.drain_timeout),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(service, settings, mounts)],
            "volumes": volumes,
        },
    }
    return merge_template(pod, service.spec.template)


def _container(service: InferenceService, settings: Settings, mounts: list[Manifest]) -> Manifest:
    observability = observability_of(service, settings)
    return {
        "name": ENGINE_CONTAINER,
        "image": service.spec.engine.image or settings.engine_image,
        **({"imagePullPolicy": settings.engine_pull_policy} if settings.engine_pull_policy else {}),
        "command": engine_command(
            service,
            f"{_LIMITS_FOLDER}/{LIMITS_FILE}",
            observability,
            f"{SECRET_FOLDER}/{TENANT_KEY}" if behind_gateway(service, settings) else None,
        ),
        "ports": [
            {"name": HTTP_PORT_NAME, "containerPort": ENGINE_PORT, "protocol": "TCP"},
            {"name": ADMIN_PORT_NAME, "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ],
        "env": _environment(service, observability),
        "resources": engine_resources(service),
        **engine_probes(startup_limit_seconds(service)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _environment(service: InferenceService, observability: EngineObservability) -> list[Manifest]:
    variables: dict[str, Manifest] = {
        "HOME": {"value": _SCRATCH},
        "INFLIGHT_ADMIN_TOKEN_FILE": {"value": f"{SECRET_FOLDER}/{TOKEN_KEY}"},
        # The engine accepts a signed admin call only if it names this pod.
        "INFLIGHT_POD_UID": {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}},
    }
    if downloads_model(service):
        variables["HF_HOME"] = {"value": f"{MODEL_FOLDER}/huggingface"}
    else:
        variables["HF_HOME"] = {"value": f"{_SCRATCH}/huggingface"}
        # The network policy blocks egress of these pods: a call to the hub would time out instead of failing at once.
        variables["HF_HUB_OFFLINE"] = {"value": "1"}
    variables |= trace_environment(service, observability)
    return [{"name": name, **value} for name, value in variables.items()]


def grace_period_seconds(drain_timeout: str) -> int:
    """terminationGracePeriodSeconds = propagation + drain + margin.

    After SIGTERM the engine keeps taking requests for `PROPAGATION_SECONDS`, since routers still send them; then it
    rejects new ones and finishes running ones within `drain_timeout`; then it exits. Kubernetes kills it only after all
    of that and a margin, so only the drain timeout ends requests.
    """
    return PROPAGATION_SECONDS + math.ceil(parse_duration(drain_timeout)) + MARGIN_SECONDS


def engine_command(
    service: InferenceService, limits_file: str, observability: EngineObservability, tenant_key_file: str | None
) -> list[str]:
    """`inflight-engine serve MODEL --flags`, with extraArgs last.

    Args:
        service: the service.
        limits_file: path of the file with the limits in force.
        observability: traces and logs of the service's engines.
        tenant_key_file: path of the file with the tenant key; None for a service that is not behind the gateway.
    """
    spec = service.spec
    flags: dict[str, str | int | None] = {
        "host": "0.0.0.0",
        "port": ENGINE_PORT,
        "admin-port": ADMIN_PORT,
        "served-model-name": served_name(service),
        "device": "cuda" if spec.accelerator.count else "cpu",
        **constant_flags(spec.engine),
        "drain-delay": PROPAGATION_SECONDS,
        "drain-timeout": seconds(spec.rollout.drain_timeout),
        "limits-file": limits_file,
    }
    if spec.model.source.startswith("hf://"):
        flags["revision"] = spec.model.revision
    return [
        "inflight-engine",
        "serve",
        model_argument(spec.model.source),
        *(f"--{flag}={value}" for flag, value in flags.items()),
        *engine_flags(spec),
        *observability_flags(observability),
        *([] if tenant_key_file is None else [f"--tenant-key-file={tenant_key_file}"]),
        *spec.engine.extra_args,
    ]


def engine_resources(service: InferenceService) -> Manifest:
    """Requests and limits of the engine's container; `template.resources` is merged over them.

    No pod is BestEffort: the kubelet evicts first those that use more than they request. With accelerators the requests
    are near what an engine uses at least: for each accelerator one process that launches its kernels (one core, 2 to
    3 GB of host memory with CUDA's context) and its part of the buffers that weights are read through. The nodes that
    such accelerators come in have 4 cores and 16 GB or more for each, so the requests do not decide where a pod fits. A
    memory limit would be a guess: how much host memory loading takes depends on the model.

    On CPU weights and cache are host memory, so there is a limit. The engine uses idle cores; 250m is its share under
    contention.
    """
    accelerator = service.spec.accelerator
    swap = parse_quantity(service.spec.engine.kv_cache.swap)
    if count := accelerator.count:
        # An extended resource is not overcommitted: request and limit must be equal.
        own = {accelerator.resource: str(count)}
        return {"requests": {"cpu": str(count), "memory": _more(f"{4 * count}Gi", swap), **own}, "limits": own}
    return {"requests": {"cpu": "250m", "memory": _more("1Gi", swap)}, "limits": {"memory": _more("4Gi", swap)}}


def download_size(service: InferenceService) -> str:
    """Bound of the volume that an hf:// model is downloaded to, as a quantity.

    The default is large enough for any model that the pod could serve: 256Gi is more than the memory of any one
    accelerator, and 64Gi on CPU is 16 times the memory limit.
    """
    storage, count = service.spec.model.storage, service.spec.accelerator.count
    return str(storage) if storage is not None else f"{256 * count}Gi" if count else "64Gi"


def _more(memory: str, swap: Decimal) -> str:
    """The quantity with the swap memory on top; unchanged without swap."""
    return str(int(parse_quantity(memory) + swap)) if swap else memory


def engine_probes(startup_limit_seconds: int) -> Manifest:
    """`startupProbe`, `readinessProbe` and `livenessProbe` of the engine's container: time until a hanging pod is
    unready, and until it is restarted.

    All go to the serving port. `/ready` and `/health` are answered by the API process, which compares the engine
    process' progress with the predicted time of a step (at least 5 s): a hanging engine process answers 503, a pod
    whose processes all hang does not answer the probe.

    An unanswered probe takes its whole timeout; the next one starts with the next tick of its period, or at once when
    that has passed. With period P, timeout T and threshold N a pod that stops answering fails within
    P + N * max(P, T), and one that answers 503 within N * P.

    Args:
        startup_limit_seconds: maximum load time of an engine. A loading engine is healthy, so only the start-up probe
            bounds that; the others begin when it has succeeded.
    """
    return {
        "startupProbe": {
            "httpGet": {"path": "/ready", "port": HTTP_PORT_NAME},
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "timeoutSeconds": 2,
            "failureThreshold": -(-startup_limit_seconds // STARTUP_PERIOD_SECONDS),
            "terminationGracePeriodSeconds": KILL_GRACE_SECONDS,
        },
        # Out of the endpoints within 4 s (1 + 3) without an answer, and 1 s after a 503. One probe with a long timeout
        # rather than three with a short one: an API process on a busy CPU that takes 1 or 2 s for each answer serves
        # on, and removing pods from an overloaded fleet makes the others slower.
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": HTTP_PORT_NAME},
            "periodSeconds": 1,
            "timeoutSeconds": 3,
            "failureThreshold": 1,
        },
        # Killed within 12 s without an answer: 2 + 4 * 2, and the grace. Only an API process that answers none of four
        # probes in a row, 8 s in all, is restarted for being slow. A hung engine process is replaced by the API process
        # 5 s after its step was overdue, with less loss than a restart of the pod: the fourth 503 comes 6 s after at
        # the earliest, and at the latest 8 s, so that the container is killed within 15 s (5 + 8, and the grace) where
        # that replacement does not happen.
        "livenessProbe": {
            "httpGet": {"path": "/health", "port": HTTP_PORT_NAME},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 4,
            "terminationGracePeriodSeconds": KILL_GRACE_SECONDS,
        },
    }

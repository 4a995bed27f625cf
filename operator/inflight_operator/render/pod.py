"""The engine's pod: one container, Pod Security `restricted`, nothing writable but its own bounded volumes."""

from __future__ import annotations

import math
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
from inflight_base.manifest.units import parse_duration
from inflight_operator.api.resolve import MODEL_FOLDER, claim_and_folder
from inflight_operator.render.admin_token import SECRET_FOLDER, TENANT_KEY, TOKEN_KEY
from inflight_operator.render.command import engine_command
from inflight_operator.render.drain import grace_period_seconds
from inflight_operator.render.gateway import behind_gateway
from inflight_operator.render.limits import LIMITS_FILE
from inflight_operator.render.networkpolicy import downloads_model
from inflight_operator.render.observability import observability_of, trace_environment
from inflight_operator.render.plan import EngineObservability, Settings
from inflight_operator.render.probes import engine_probes
from inflight_operator.render.resources import SCRATCH_SIZE, SHARED_MEMORY_SIZE, download_size, engine_resources
from inflight_operator.render.template import merge_template

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

USER_ID = 65532
"""The non-root user and group of the engine image; the group owns mounted files."""

_LIMITS_FOLDER = "/etc/inflight/limits"
_SCRATCH = "/tmp"


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

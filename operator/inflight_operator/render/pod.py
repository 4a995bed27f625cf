"""The engine's pod: one container, Pod Security `restricted`, nothing writable but its own scratch space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_operator.quantities import parse_quantity
from inflight_operator.api.resolve import MODEL_FOLDER, claim_and_folder
from inflight_operator.observe.pods import ENGINE_CONTAINER
from inflight_operator.render.admin_token import TOKEN_KEY
from inflight_operator.render.command import ENGINE_PORT, engine_command
from inflight_operator.render.drain import grace_period_seconds
from inflight_operator.render.labels import child_labels, child_names
from inflight_operator.render.limits import LIMITS_FILE
from inflight_operator.render.networkpolicy import downloads_model
from inflight_operator.render.plan import Manifest, Settings
from inflight_operator.render.service import PORT_NAME
from inflight_operator.render.template import merge_template

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService

USER_ID = 65532
"""The non-root user and group of the engine image; the group owns mounted files."""

STARTUP_LIMIT_SECONDS = 1800
"""How long an engine may take to download and load its model before it is restarted."""

_LIMITS_FOLDER = "/etc/inflight/limits"
_TOKEN_FOLDER = "/etc/inflight/admin"
_SCRATCH = "/tmp"


def pod_template(service: InferenceService, settings: Settings) -> Manifest:
    """The pod template. It depends on the spec and the settings only, never on what was decided or measured."""
    name = service.metadata.name
    names = child_names(name)
    volumes: list[Manifest] = [
        {"name": "inflight-scratch", "emptyDir": {}},
        {"name": "inflight-limits", "configMap": {"name": names.limits}},
        {"name": "inflight-admin", "secret": {"secretName": names.admin_token, "defaultMode": 0o440}},
    ]
    mounts: list[Manifest] = [
        {"name": "inflight-scratch", "mountPath": _SCRATCH},
        {"name": "inflight-limits", "mountPath": _LIMITS_FOLDER, "readOnly": True},
        {"name": "inflight-admin", "mountPath": _TOKEN_FOLDER, "readOnly": True},
    ]
    if service.spec.accelerator.count:
        volumes.append({"name": "inflight-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}})
        mounts.append({"name": "inflight-shm", "mountPath": "/dev/shm"})
    if claimed := claim_and_folder(service.spec.model.source):
        claim = {"claimName": claimed[0], "readOnly": True}
        volumes.append({"name": "inflight-model", "persistentVolumeClaim": claim})
        mounts.append({"name": "inflight-model", "mountPath": MODEL_FOLDER, "readOnly": True})
    pod: Manifest = {
        "metadata": {"labels": child_labels(name)},
        "spec": {
            # Written out, since the API server keeps an account that was once set when the field is merely taken away.
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
    health, ready = ({"path": path, "port": PORT_NAME} for path in ("/health", "/ready"))
    return {
        "name": ENGINE_CONTAINER,
        "image": service.spec.engine.image or settings.engine_image,
        "command": engine_command(service, f"{_LIMITS_FOLDER}/{LIMITS_FILE}"),
        "ports": [{"name": PORT_NAME, "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "env": _environment(service),
        "resources": _resources(service),
        # An engine that loads is healthy, so only this probe bounds how long loading may take.
        "startupProbe": {
            "httpGet": ready,
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": STARTUP_LIMIT_SECONDS // 2,
        },
        # Generous: a busy engine answers late, and a restart would lose all it is working on.
        "livenessProbe": {"httpGet": health, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {
            "httpGet": ready,
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _environment(service: InferenceService) -> list[Manifest]:
    variables = {
        "HOME": _SCRATCH,
        "HF_HOME": f"{_SCRATCH}/huggingface",
        "INFLIGHT_ADMIN_TOKEN_FILE": f"{_TOKEN_FOLDER}/{TOKEN_KEY}",
    }
    if not downloads_model(service):
        # The network policy lets nothing out of these pods: a library that asks the hub would wait, not fail.
        variables["HF_HUB_OFFLINE"] = "1"
    return [{"name": name, "value": value} for name, value in variables.items()]


def _resources(service: InferenceService) -> Manifest:
    accelerator = service.spec.accelerator
    if accelerator.count:
        # An extended resource is not overcommitted: request and limit must be equal.
        return {
            "requests": {accelerator.resource: str(accelerator.count)},
            "limits": {accelerator.resource: str(accelerator.count)},
        }
    request, limit = "1Gi", "4Gi"
    if swap := parse_quantity(service.spec.engine.kv_cache.swap):
        request, limit = (str(int(parse_quantity(memory) + swap)) for memory in (request, limit))
    return {"requests": {"cpu": "250m", "memory": request}, "limits": {"memory": limit}}

"""The engine's pod: Pod Security `restricted`, nothing writable but its own bounded volumes."""

from __future__ import annotations

import math

from inflight_base.manifest import Manifest
from inflight_base.manifest.engines import CUSTOM, INFLIGHT, VLLM, annotation_of
from inflight_base.manifest.names import (
    ENGINE_ANNOTATION,
    ENGINE_CONTAINER,
    MODEL_VOLUME,
    QUEUE_LABEL,
    child_labels,
    child_names,
)
from inflight_base.manifest.units import parse_duration
from inflight_operator.api.resolve import (
    MODEL_FOLDER,
    claim_and_folder,
    disk_size,
    downloads_model,
    engine_type,
    model_image,
)
from inflight_operator.api.types import InferenceService
from inflight_operator.render.admin_token import SECRET_FOLDER
from inflight_operator.render.engines.container import (
    LIMITS_FOLDER,
    PROPAGATION_SECONDS,
    RESTRICTED,
    SCRATCH,
    EngineContainer,
    Volume,
)
from inflight_operator.render.engines.custom import custom_container
from inflight_operator.render.engines.inflight import inflight_container
from inflight_operator.render.engines.vllm import vllm_container
from inflight_operator.render.plan import Settings
from inflight_operator.render.template import merge_template

USER_ID = 65532
"""The non-root user and group of all containers, that of the engine image; the group owns mounted files."""

SCRATCH_SIZE = "4Gi"
"""Bound of /tmp: compiled kernels and caches of libraries are some hundred MB, a recording a few GB in a day."""

SHARED_MEMORY_SIZE = "1Gi"
"""Bound of /dev/shm, through which the processes of one engine exchange tensors; it counts as memory of the pod."""

MARGIN_SECONDS = 20
"""Seconds for the engine to notice, close its sockets and exit, on a busy machine."""

_CONTAINERS = {INFLIGHT: inflight_container, VLLM: vllm_container, CUSTOM: custom_container}


def pod_template(service: InferenceService, settings: Settings) -> Manifest:
    """The pod template. It depends only on the spec and the settings, never on decisions or measurements."""
    engine = _CONTAINERS[service.spec.engine.type](service, settings)
    volumes = _volumes(service, engine)
    pod: Manifest = {
        "metadata": {"labels": {**child_labels(service.metadata.name), **_queue(service)}, **_annotations(service)},
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
            **({"initContainers": list(engine.init_containers)} if engine.init_containers else {}),
            "containers": [_container(engine, settings, volumes, service.spec.model.credentials_secret)],
            "volumes": [each.volume for each in volumes if each.source is not None],
        },
    }
    return merge_template(pod, service.spec.template)


def _queue(service: InferenceService) -> dict[str, str]:
    return {QUEUE_LABEL: service.spec.queue_name} if service.spec.queue_name else {}


def _annotations(service: InferenceService) -> Manifest:
    annotation = annotation_of(engine_type(service.spec))
    return {"annotations": {ENGINE_ANNOTATION: annotation}} if annotation else {}


def _volumes(service: InferenceService, engine: EngineContainer) -> list[Volume]:
    names = child_names(service.metadata.name)
    volumes = [Volume("inflight-scratch", {"emptyDir": {"sizeLimit": SCRATCH_SIZE}}, SCRATCH, read_only=False)]
    if engine.admin:
        secret = {"secretName": names.admin_token, "defaultMode": 0o440}
        volumes.append(Volume("inflight-limits", {"configMap": {"name": names.limits}}, LIMITS_FOLDER))
        volumes.append(Volume("inflight-admin", {"secret": secret}, SECRET_FOLDER))
    if service.spec.accelerator.count or engine.shared_memory:
        memory = {"emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY_SIZE}}
        volumes.append(Volume("inflight-shm", memory, "/dev/shm", read_only=False))
    if claimed := claim_and_folder(service.spec.model.source):
        claim = {"persistentVolumeClaim": {"claimName": claimed[0], "readOnly": True}}
        volumes.append(Volume(MODEL_VOLUME, claim, MODEL_FOLDER))
    if image := model_image(service.spec.model.source):
        volumes.append(Volume(MODEL_VOLUME, {"image": {"reference": image}}, MODEL_FOLDER))
    if downloads_model(service.spec.model.source):
        disk = {"emptyDir": {"sizeLimit": disk_size(service.spec)}}
        volumes.append(Volume(MODEL_VOLUME, disk, MODEL_FOLDER, read_only=False))
    return [*volumes, *engine.volumes]


def _container(engine: EngineContainer, settings: Settings, volumes: list[Volume], credentials: str | None) -> Manifest:
    """The container. `credentials`: Secret of which each key becomes an environment variable."""
    environment: dict[str, Manifest] = {"HOME": {"value": SCRATCH}, **engine.environment}
    return {
        "name": ENGINE_CONTAINER,
        "image": engine.image,
        **({"imagePullPolicy": settings.engine_pull_policy} if settings.engine_pull_policy else {}),
        **engine.start,
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in engine.ports.items()],
        "env": [{"name": name, **value} for name, value in environment.items()],
        **({"envFrom": [{"secretRef": {"name": credentials}}]} if credentials else {}),
        "resources": engine.resources,
        **engine.probes,
        **({"lifecycle": engine.stop} if engine.stop else {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(RESTRICTED),
        "volumeMounts": [each.mount for each in volumes],
    }


def grace_period_seconds(drain_timeout: str) -> int:
    """terminationGracePeriodSeconds = propagation + drain + margin.

    After SIGTERM the engine keeps taking requests for `PROPAGATION_SECONDS`, since routers still send them; then it
    rejects new ones and finishes running ones within `drain_timeout`; then it exits. Kubernetes kills it only after all
    of that and a margin, so only the drain timeout ends requests.
    """
    return PROPAGATION_SECONDS + math.ceil(parse_duration(drain_timeout)) + MARGIN_SECONDS

"""The container of Inflight's own engine."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from inflight_base.manifest import Manifest
from inflight_base.manifest.engines import INFLIGHT
from inflight_base.manifest.names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    ENGINE_PORT,
    GRPC_PORT,
    GRPC_PORT_NAME,
    HTTP_PORT_NAME,
    MODEL_CACHE_VOLUME,
)
from inflight_base.manifest.units import parse_quantity
from inflight_contract.model_blocks import PEERS_FILE
from inflight_operator.api.pods.template import KV_FOLDER, MODEL_CACHE_FOLDER
from inflight_operator.api.resolve import (
    asks_peers,
    disk_size,
    downloads_model,
    is_stored,
    model_argument,
    served_name,
    startup_limit_seconds,
)
from inflight_operator.api.types import InferenceService
from inflight_operator.render.admin_token import SECRET_FOLDER, TENANT_KEY
from inflight_operator.render.engine_flags import constant_flags, engine_flags, peers_flags, seconds
from inflight_operator.render.engines.container import (
    ADMIN_ENVIRONMENT,
    KILL_GRACE_SECONDS,
    LIMITS_PATH,
    PROPAGATION_SECONDS,
    EngineContainer,
    Volume,
    hub_environment,
    readiness_probe,
    startup_probe,
)
from inflight_operator.render.engines.kv_events import kv_events_flags, kv_events_ports
from inflight_operator.render.observability import observability_flags, observability_of, trace_environment
from inflight_operator.render.plan import EngineObservability, ModelCache, Settings
from inflight_operator.render.service import behind_gateway

_CA_FOLDER = "/etc/inflight/model-ca"

DISK_MARGIN = 64 << 20
"""Bytes of a volume beside the KV blocks, or the weights, that it is for."""


def inflight_container(service: InferenceService, settings: Settings) -> EngineContainer:
    """`inflight-engine serve`."""
    observability = observability_of(service, settings)
    key_file = f"{SECRET_FOLDER}/{TENANT_KEY}" if behind_gateway(service, settings) else None
    grpc = {GRPC_PORT_NAME: GRPC_PORT} if service.spec.engine.grpc else {}
    return EngineContainer(
        image=service.spec.engine.image or settings.engine_image,
        start={
            "command": engine_command(service, LIMITS_PATH, observability, key_file, model_cache(service, settings))
        },
        ports={HTTP_PORT_NAME: ENGINE_PORT, ADMIN_PORT_NAME: ADMIN_PORT, **grpc, **kv_events_ports(service)},
        environment={
            **ADMIN_ENVIRONMENT,
            **hub_environment(service),
            **_store_environment(service),
            **trace_environment(service, observability),
        },
        resources=engine_resources(service),
        probes=engine_probes(startup_limit_seconds(service.spec)),
        volumes=(*_store_volumes(service), *_kv_volumes(service), *_cache_volumes(service, settings)),
    )


def _store_environment(service: InferenceService) -> dict[str, Manifest]:
    """Variables for the store of a remote model."""
    model = service.spec.model
    return {
        **({"INFLIGHT_MODEL_ENDPOINT": {"value": model.endpoint}} if model.endpoint else {}),
        **({"INFLIGHT_MODEL_CA_FILE": {"value": f"{_CA_FOLDER}/ca.crt"}} if model.ca_config_map else {}),
    }


def _store_volumes(service: InferenceService) -> tuple[Volume, ...]:
    name = service.spec.model.ca_config_map
    return (Volume("inflight-model-ca", {"configMap": {"name": name}}, _CA_FOLDER),) if name else ()


def _kv_volumes(service: InferenceService) -> tuple[Volume, ...]:
    """The disk behind the KV cache."""
    disk = service.spec.engine.kv_cache.disk
    if disk is None:
        return ()
    if disk.volume is not None:
        return (Volume(disk.volume, None, KV_FOLDER, read_only=False),)
    return (Volume("inflight-kv", _bounded(int(parse_quantity(disk.size))), KV_FOLDER, read_only=False),)


def _bounded(size: int) -> Manifest:
    """Returns a volume of the pod for so many bytes. The kubelet evicts a pod that exceeds the limit, and file systems
    count more than the bytes of files."""
    return {"emptyDir": {"sizeLimit": str(size + DISK_MARGIN)}}


def model_cache(service: InferenceService, settings: Settings) -> ModelCache | None:
    """Returns the folder of models that the service's engines share with others; None: they use none. Other types than
    Inflight's own know no such folder."""
    cache, source = settings.model_cache, service.spec.model.source
    if cache is None or service.spec.engine.type != INFLIGHT or not (downloads_model(source) or is_stored(source)):
        return None
    return cache if service.metadata.namespace in (cache.namespaces or {service.metadata.namespace}) else None


def _cache_volumes(service: InferenceService, settings: Settings) -> tuple[Volume, ...]:
    cache = model_cache(service, settings)
    if cache is None and asks_peers(service.spec):
        return (Volume(MODEL_CACHE_VOLUME, _bounded(_own_size(service)), MODEL_CACHE_FOLDER, read_only=False),)
    if cache is None:
        return ()
    if cache.claim:  # a claim is of one namespace
        source: Manifest = {"persistentVolumeClaim": {"claimName": cache.claim}}
        return (Volume(MODEL_CACHE_VOLUME, source, MODEL_CACHE_FOLDER, read_only=False),)
    # Type Directory: a folder that the kubelet made would belong to root, and the disk might be the node's own.
    source = {"hostPath": {"path": cache.host_path, "type": "Directory"}}
    folder = service.metadata.namespace
    return (Volume(MODEL_CACHE_VOLUME, source, MODEL_CACHE_FOLDER, read_only=False, folder=folder),)


def _own_size(service: InferenceService) -> int:
    """Returns the bytes of weights that an engine keeps for its peers where engines share no folder."""
    return int(parse_quantity(disk_size(service.spec)))


def engine_command(
    service: InferenceService,
    limits_file: str,
    observability: EngineObservability,
    tenant_key_file: str | None,
    cache: ModelCache | None = None,
) -> list[str]:
    """`inflight-engine serve MODEL --flags`, with extraArgs last.

    Args:
        service: the service.
        limits_file: path of the file with the limits in force.
        observability: traces and logs of the service's engines.
        tenant_key_file: path of the file with the tenant key; None for a service that is not behind the gateway.
        cache: folder of models that engines share.
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
    kept = cache.size if cache is not None else _own_size(service) if asks_peers(spec) else None
    return [
        "inflight-engine",
        "serve",
        model_argument(spec.model),
        *(f"--{flag}={value}" for flag, value in flags.items()),
        *engine_flags(spec),
        *observability_flags(observability),
        *([f"--grpc-port={GRPC_PORT}"] if spec.engine.grpc else []),
        *kv_events_flags(service),
        *([] if tenant_key_file is None else [f"--tenant-key-file={tenant_key_file}"]),
        *([] if kept is None else [f"--model-cache={MODEL_CACHE_FOLDER}", f"--model-cache-size={kept}"]),
        *([f"--peers-file={Path(limits_file).with_name(PEERS_FILE)}"] if asks_peers(spec) else []),
        *peers_flags(spec),
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
        "startupProbe": startup_probe("/ready", startup_limit_seconds),
        "readinessProbe": readiness_probe("/ready"),
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

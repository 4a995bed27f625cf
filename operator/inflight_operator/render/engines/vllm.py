"""The container of vLLM, with Inflight's plugin unless the service leaves it out.

The plugin comes from the operator's own image: an init container copies its packages into a volume on PYTHONPATH, so
that vLLM's official image needs no change. A built-in model is in Inflight's engine image, as a file that vLLM does not
load: an init container from that image writes it in Hugging Face's format.
"""

from __future__ import annotations

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import (
    ADMIN_PORT,
    ADMIN_PORT_NAME,
    ENGINE_PORT,
    HTTP_PORT_NAME,
    MODEL_CONTAINER,
    MODEL_VOLUME,
    PLUGIN_CONTAINER,
)
from inflight_base.manifest.units import parse_quantity
from inflight_operator.api.pods.scheduling import ClassSLO
from inflight_operator.api.resolve import MODEL_FOLDER, model_argument, served_name, startup_limit_seconds
from inflight_operator.api.spec import InferenceServiceSpec
from inflight_operator.api.types import InferenceService
from inflight_operator.render.admin_token import SECRET_FOLDER, TENANT_KEY
from inflight_operator.render.engine_flags import class_text, has_ttft_target, number, seconds, ttft_target
from inflight_operator.render.engines.container import (
    ADMIN_ENVIRONMENT,
    LIMITS_PATH,
    PROPAGATION_SECONDS,
    RESTRICTED,
    SCRATCH,
    EngineContainer,
    Volume,
    hub_environment,
    keeps_serving,
    third_party_probes,
)
from inflight_operator.render.engines.kv_events import kv_events_flags, kv_events_ports
from inflight_operator.render.observability import observability_of, vllm_trace_environment, vllm_trace_flags
from inflight_operator.render.plan import EngineObservability, Settings
from inflight_operator.render.service import behind_gateway

PLUGIN_FOLDER = "/opt/inflight/vllm"
_PLUGIN_VOLUME = "inflight-plugin"
_BUILTIN = "builtin://"

PLUGIN_SIZE = "64Mi"
"""Bound of the plugin's volume: Python files of less than 1 MB."""

BUILTIN_MODEL_SIZE = "4Gi"
"""Bound of the volume of a built-in model, which is below 1 GB in bfloat16."""

CPU_KV_CACHE = 2**30
"""Bytes of the KV cache on CPU, unless the spec says. vLLM would take its share of the memory of the whole node."""

_ENVIRONMENT: dict[str, Manifest] = {
    # torch names the folder of its compiled kernels after the user, and user 65532 has no name in the image.
    "USER": {"value": "inflight"},
    "XDG_CACHE_HOME": {"value": f"{SCRATCH}/cache"},
    "XDG_CONFIG_HOME": {"value": f"{SCRATCH}/config"},
    # The network policy may block egress: reports of usage would only time out.
    "VLLM_NO_USAGE_STATS": {"value": "1"},
}


_NAMED_BLOCKS: dict[str, Manifest] = {"PYTHONHASHSEED": {"value": "0"}}
"""vLLM's hashes of blocks depend on it: the gateway computes them too (`relay/answers/vllm_blocks.py`)."""


def vllm_container(service: InferenceService, settings: Settings) -> EngineContainer:
    """`vllm serve`."""
    plugin, observability = service.spec.engine.plugin, observability_of(service, settings)
    builtin = service.spec.model.source.startswith(_BUILTIN)
    return EngineContainer(
        image=service.spec.engine.image or settings.vllm_image,
        start={"command": vllm_command(service, observability)},
        ports={
            HTTP_PORT_NAME: ENGINE_PORT,
            **({ADMIN_PORT_NAME: ADMIN_PORT} if plugin else {}),
            **kv_events_ports(service),
        },
        environment={
            **_ENVIRONMENT,
            **(_NAMED_BLOCKS if service.spec.engine.kv_events else {}),
            **hub_environment(service),
            **(_plugin_environment(service, settings) if plugin else {}),
            **vllm_trace_environment(service, observability),
        },
        resources=_resources(service),
        # The plugin answers /ready while vLLM is healthy and the pod is not draining.
        probes=third_party_probes("/ready" if plugin else "/health", "/health", startup_limit_seconds(service.spec)),
        stop={} if plugin else keeps_serving(),
        admin=plugin,
        shared_memory=True,
        volumes=(
            *([_model_volume(read_only=True)] if builtin else []),
            *([_plugin_volume(PLUGIN_FOLDER, read_only=True)] if plugin else []),
        ),
        init_containers=(
            *([_builtin_model(service, settings)] if builtin else []),
            *([_plugin(settings)] if plugin else []),
        ),
    )


def vllm_command(service: InferenceService, observability: EngineObservability) -> list[str]:
    """`vllm serve MODEL --flags`, with extraArgs last. Only the sizes and the number type are written with their
    defaults too, as vLLM's own depend on the device."""
    spec = service.spec
    engine, cache = spec.engine, spec.engine.kv_cache
    optional: dict[str, str | None] = {
        "revision": spec.model.revision if spec.model.source.startswith("hf://") else None,
        "max-model-len": None if engine.max_model_len is None else str(engine.max_model_len),
        "tensor-parallel-size": str(spec.accelerator.count) if spec.accelerator.count > 1 else None,
        "kv-cache-memory-bytes": _cache_bytes(spec),
        "gpu-memory-utilization": number(cache.memory_fraction) if spec.accelerator.count else None,
        "kv-cache-dtype": None if cache.dtype == "auto" else cache.dtype,
        "scheduling-policy": "priority" if _by_number(spec) else None,
        "tool-call-parser": engine.tool_call_parser,
        "reasoning-parser": engine.reasoning_parser,
    }
    return [
        "vllm",
        "serve",
        _model(service),
        "--host=0.0.0.0",
        f"--port={ENGINE_PORT}",
        f"--served-model-name={served_name(service)}",
        f"--dtype={engine.dtype}",
        f"--max-num-seqs={engine.max_num_seqs}",
        f"--max-num-batched-tokens={engine.max_num_batched_tokens}",
        *(f"--{flag}={value}" for flag, value in optional.items() if value is not None),
        *([] if engine.tool_call_parser is None else ["--enable-auto-tool-choice"]),
        *([] if cache.prefix_caching else ["--no-enable-prefix-caching"]),
        # Without it usage has no `cached_tokens`, which clients and the gateway's metrics count.
        "--enable-prompt-tokens-details",
        # vLLM ends requests in flight at SIGTERM unless it has time for them.
        f"--shutdown-timeout={_drain_seconds(spec)}",
        *(_plugin_flags(spec) if engine.plugin else []),
        *vllm_trace_flags(observability),
        *kv_events_flags(service),
        *engine.extra_args,
    ]


def _plugin_flags(spec: InferenceServiceSpec) -> list[str]:
    return [
        "--scheduler-cls=inflight_vllm.scheduler.LiveScheduler",
        "--middleware=inflight_vllm.middleware.Inflight",
        *([] if spec.accelerator.count else ["--worker-cls=inflight_vllm.cpu_worker.SeededWorker"]),
    ]


def _plugin_environment(service: InferenceService, settings: Settings) -> dict[str, Manifest]:
    spec = service.spec
    values = {
        "INFLIGHT_ADMIN_PORT": str(ADMIN_PORT),
        "INFLIGHT_LIMITS_FILE": LIMITS_PATH,
        "INFLIGHT_DRAIN_DELAY": str(PROPAGATION_SECONDS),
        "INFLIGHT_DRAIN_TIMEOUT": seconds(spec.rollout.drain_timeout),
    }
    if behind_gateway(service, settings):
        values["INFLIGHT_TENANT_KEY_FILE"] = f"{SECRET_FOLDER}/{TENANT_KEY}"
    if target := ttft_target(spec):
        values["INFLIGHT_TTFT_TARGET"] = target
    if classes := spec.engine.scheduling.classes:
        if spec.engine.scheduling.policy == "priority":
            # The plugin orders by deadline where a class has a target.
            classes = [each.model_copy(update={"slo": ClassSLO()}) for each in classes]
        values["INFLIGHT_CLASSES"] = ";".join(map(class_text, classes))
    return {
        "PYTHONPATH": {"value": PLUGIN_FOLDER},
        **ADMIN_ENVIRONMENT,
        **{name: {"value": value} for name, value in values.items()},
    }


def _model(service: InferenceService) -> str:
    source = service.spec.model.source
    if source.startswith(_BUILTIN):
        return f"{MODEL_FOLDER}/{source.removeprefix(_BUILTIN)}"
    return model_argument(service.spec.model).removeprefix("hf://")


def _cache_bytes(spec: InferenceServiceSpec) -> str | None:
    memory = spec.engine.kv_cache.memory
    if memory is not None:
        return str(int(parse_quantity(memory)))
    return None if spec.accelerator.count else str(CPU_KV_CACHE)


def _by_number(spec: InferenceServiceSpec) -> bool:
    """Returns True if vLLM orders requests by a number: their priority, or the deadline that the plugin sets."""
    policy = spec.engine.scheduling.policy
    return policy == "priority" or (spec.engine.plugin and policy != "fcfs" and has_ttft_target(spec))


def _drain_seconds(spec: InferenceServiceSpec) -> int:
    return max(1, round(float(seconds(spec.rollout.drain_timeout))))


def _resources(service: InferenceService) -> Manifest:
    """Requests and limits, with accelerators as for Inflight's engine. On CPU the KV cache is requested with 1 GiB for
    the rest, and no limit of memory is known that fits every model: loading and compiling take more than serving."""
    if count := service.spec.accelerator.count:
        own = {service.spec.accelerator.resource: str(count)}
        return {"requests": {"cpu": str(count), "memory": f"{4 * count}Gi", **own}, "limits": own}
    memory = 2**30 + int(_cache_bytes(service.spec) or 0)
    return {"requests": {"cpu": "250m", "memory": str(memory)}}


def _builtin_model(service: InferenceService, settings: Settings) -> Manifest:
    volume = _model_volume(read_only=False)
    command = ["inflight-engine", "export", service.spec.model.source, _model(service)]
    return _init_container(MODEL_CONTAINER, settings.engine_image, command, volume, settings)


def _plugin(settings: Settings) -> Manifest:
    command = ["inflight-operator", "export-vllm-plugin", PLUGIN_FOLDER]
    volume = _plugin_volume(PLUGIN_FOLDER, read_only=False)
    return _init_container(PLUGIN_CONTAINER, settings.plugin_image, command, volume, settings)


def _init_container(name: str, image: str, command: list[str], volume: Volume, settings: Settings) -> Manifest:
    scratch = {"name": "inflight-scratch", "mountPath": SCRATCH}
    return {
        "name": name,
        "image": image,
        **({"imagePullPolicy": settings.engine_pull_policy} if settings.engine_pull_policy else {}),
        "command": command,
        "env": [{"name": "HOME", "value": SCRATCH}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(RESTRICTED),
        "volumeMounts": [scratch, volume.mount],
    }


def _model_volume(*, read_only: bool) -> Volume:
    return Volume(MODEL_VOLUME, {"emptyDir": {"sizeLimit": BUILTIN_MODEL_SIZE}}, MODEL_FOLDER, read_only)


def _plugin_volume(path: str, *, read_only: bool) -> Volume:
    return Volume(_PLUGIN_VOLUME, {"emptyDir": {"sizeLimit": PLUGIN_SIZE}}, path, read_only)

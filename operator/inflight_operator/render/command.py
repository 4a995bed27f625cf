"""The command line of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight_base.manifest.names import ADMIN_PORT, ENGINE_PORT
from inflight_base.manifest.units import parse_quantity
from inflight_operator.api.resolve import model_argument, served_name
from inflight_operator.render.drain import PROPAGATION_SECONDS
from inflight_operator.render.engine_flags import engine_flags
from inflight_operator.render.flag_values import seconds
from inflight_operator.render.observability import observability_flags

if TYPE_CHECKING:
    from inflight_operator.api.types import InferenceService
    from inflight_operator.render.plan import EngineObservability


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
    flags: dict[str, str | int] = {
        "host": "0.0.0.0",
        "port": ENGINE_PORT,
        "admin-port": ADMIN_PORT,
        "served-model-name": served_name(service),
        "device": "cuda" if spec.accelerator.count else "cpu",
        "dtype": spec.engine.dtype,
        "max-num-seqs": spec.engine.max_num_seqs,
        "max-num-batched-tokens": spec.engine.max_num_batched_tokens,
        "max-queued-requests": spec.engine.max_queued_requests,
        "queue-timeout": seconds(spec.engine.queue_timeout),
        "request-timeout": seconds(spec.engine.request_timeout),
        "drain-delay": PROPAGATION_SECONDS,
        "drain-timeout": seconds(spec.rollout.drain_timeout),
        "limits-file": limits_file,
    }
    if spec.model.source.startswith("hf://"):
        flags["revision"] = spec.model.revision
    if spec.engine.max_model_len is not None:
        flags["max-model-len"] = spec.engine.max_model_len
    if spec.engine.kv_cache.memory is not None:
        flags["kv-cache-memory"] = int(parse_quantity(spec.engine.kv_cache.memory))
    if spec.accelerator.count > 1:
        flags["tensor-parallel-size"] = spec.accelerator.count
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

"""The flags of `inflight-engine serve`."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from inflight_engine.config import ATTENTION_BACKENDS, DEVICES, DTYPES, KV_CACHE_DTYPES, QUANTIZATIONS, EngineConfig
from inflight_engine.models.generation_config import FROM_MODEL
from inflight_engine.server.settings.config import QueueBounds, ServerConfig
from inflight_engine.server.settings.observability_flags import (
    access_log_exclusions,
    add_observability_flags,
    tracing_config,
)
from inflight_engine.server.settings.scheduling_flags import add_scheduling_flags
from inflight_settings.flag_types import number, size
from inflight_settings.scheduling import ServiceClass, default_policy

DESCRIPTION = """\
Serve one model over HTTP: OpenAI's chat completions and completions, /v1/generate, Prometheus metrics.

MODEL is builtin://smollm2, a folder with a Hugging Face model, or a Hugging Face name.
Calls for admins (PATCH /v1/runtime_config, POST /admin/drain, GET /admin/record) need the token in
$INFLIGHT_ADMIN_TOKEN, or in the file named by $INFLIGHT_ADMIN_TOKEN_FILE; with --admin-port they have a port of their
own."""

EXAMPLE = """\
example:
  inflight-engine serve builtin://smollm2 --port 8000
  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Name three colors of the rainbow."}], "max_tokens": 32}'"""

_count = number(int, 1)
_seconds = number(float, 0.001)


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """Names are vLLM's where vLLM has the thing."""
    default = {field.name: field.default for field in fields(EngineConfig)}

    def add(name: str, text: str, **how: Any) -> None:
        shown = "" if how.get("default") is None else " (default: %(default)s)"
        parser.add_argument(name, help=text + shown, **how)

    add("model", "what to serve; may also stand in the file of --config", metavar="MODEL", nargs="?")
    add(
        "--config",
        "YAML or JSON file whose fields are the names of these flags; a flag wins",
        type=Path,
        metavar="FILE",
    )
    add("--host", "address to listen on", default="0.0.0.0", metavar="ADDRESS")
    add("--port", "port to listen on; 0 takes a free one", type=number(int, 0, 65535), default=8000)
    add(
        "--admin-port",
        "port for admin calls, /metrics, /health and /ready; 0 takes a free one (default: they are on --port)",
        type=number(int, 0, 65535),
        metavar="PORT",
    )
    parser.add_argument(
        "--no-serving-metrics",
        help="with --admin-port: /metrics is there only",
        dest="serving_metrics",
        action="store_false",
    )
    add("--served-model-name", "what clients call the model (default: the last part of MODEL)", metavar="NAME")
    add(
        "--generation-config",
        "where requests get the temperature, top_p, top_k, min_p and repetition_penalty that they do not set, and "
        "max_new_tokens, which bounds all answers: auto, the model's generation_config.json; none: OpenAI's defaults "
        "(vLLM's value `vllm`); or a folder with such a file",
        default=FROM_MODEL,
        metavar="auto|none|FOLDER",
    )
    add("--revision", "branch, tag or commit of a Hugging Face model", default=default["revision"])
    add("--device", "auto takes a GPU when there is one", choices=DEVICES, default=default["device"])
    add(
        "--dtype",
        "of weights and KV cache; auto: bfloat16 where the device is faster in it",
        choices=DTYPES,
        default="auto",
    )
    add(
        "--quantization",
        "of weights, on a CPU with the native kernels: int8 or int4",
        choices=QUANTIZATIONS,
        default=default["quantization"],
    )
    add(
        "--attention-backend",
        "auto takes the fastest that can serve the model here",
        choices=ATTENTION_BACKENDS,
        default=default["attention_backend"],
    )
    add(
        "--tensor-parallel-size",
        "GPUs that share each layer",
        type=_count,
        default=default["tensor_parallel_size"],
        metavar="N",
    )
    add(
        "--num-threads",
        "on CPU, threads that compute (default: the CPUs it may use, less one where there are more than four)",
        type=_count,
        metavar="N",
    )
    parser.add_argument("--enforce-eager", help="do without CUDA graphs", action="store_true")
    parser.add_argument(
        "--no-async-scheduling",
        help="on a GPU, wait for each step before the next is scheduled",
        dest="async_scheduling",
        action="store_false",
    )
    parser.add_argument(
        "--batch-invariant",
        help="on a GPU, the same tokens whatever else is in the batch, at some cost in speed; CPU kernels always do",
        action="store_true",
    )
    add("--max-model-len", "longest prompt plus output, in tokens (default: the model's own)", type=_count, metavar="N")
    add(
        "--max-num-seqs",
        "capacity: most requests running at once",
        type=_count,
        default=default["max_num_seqs"],
        metavar="N",
    )
    add(
        "--max-num-batched-tokens",
        "capacity: most tokens computed in one step",
        type=_count,
        default=default["max_num_batched_tokens"],
        metavar="N",
    )
    add(
        "--block-size",
        "tokens in a KV block (default: what the attention backend prefers, 16 or 256)",
        type=_count,
        metavar="N",
    )
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument("--num-kv-blocks", help="blocks of the KV cache", type=_count, metavar="N")
    cache.add_argument(
        "--kv-cache-memory",
        help="memory of the KV cache, as in 2Gi (default: a share of what is free)",
        type=size,
        metavar="SIZE",
    )
    add(
        "--kv-cache-dtype",
        "auto is that of --dtype; fp8, on GPUs that have it, halves the cache",
        choices=KV_CACHE_DTYPES,
        default=default["kv_cache_dtype"],
    )
    add(
        "--gpu-memory-utilization",
        "share of a GPU's memory for weights, activations and KV cache together",
        type=number(float, 0.05, 1.0),
        default=default["gpu_memory_utilization"],
        metavar="SHARE",
    )
    add(
        "--kv-headroom",
        "share of the KV cache that new requests leave to running ones",
        type=number(float, 0, 0.9),
        default=default["kv_headroom"],
        metavar="SHARE",
    )
    add_scheduling_flags(add)
    parser.add_argument(
        "--trust-tenant-header",
        help="the header X-Inflight-Tenant says whose a request is: only where a gateway sets it and removes what "
        "clients send (default: it is ignored, and all requests are of one tenant)",
        action="store_true",
    )
    add(
        "--tenant-key-file",
        "file with the key that signs the header X-Inflight-Tenant: the header is believed only with a valid "
        "X-Inflight-Tenant-Signature; read again when it changes",
        type=Path,
        metavar="FILE",
    )
    add("--seed", "base of the random streams of requests without a seed", type=number(int, 0, 2**63 - 1), default=0)
    add(
        "--limits-file",
        "JSON with max_num_seqs, max_num_batched_tokens and revision to start with; need not exist",
        type=Path,
        metavar="FILE",
    )
    add("--max-queued-requests", "most requests that wait; beyond it 503", type=_count, default=512, metavar="N")
    add(
        "--max-queued-tokens",
        "most prompt tokens that wait; beyond it 503 (default: any number)",
        type=_count,
        metavar="N",
    )
    add(
        "--shed-after",
        "503 at once for a request that is predicted to wait longer than so many seconds (default: any wait)",
        type=_seconds,
        metavar="S",
    )
    add("--queue-timeout", "seconds a request may wait for a slot, then 504", type=_seconds, default=60.0, metavar="S")
    add(
        "--request-timeout",
        "seconds without progress: from a request's arrival to its first token, and from each token to the next, then "
        "504; an answer may take any time while tokens come",
        type=_seconds,
        default=600.0,
        metavar="S",
    )
    add(
        "--drain-delay",
        "seconds after SIGTERM in which requests are still taken, while routes still lead here",
        type=number(float, 0),
        default=0.0,
        metavar="S",
    )
    add(
        "--drain-timeout",
        "seconds after that in which running requests may finish",
        type=number(float, 0),
        default=120.0,
        metavar="S",
    )
    add_observability_flags(add)


def server_config(flags: argparse.Namespace) -> ServerConfig:
    """Typed, from parsed flags whose names are those of the fields."""
    classes = tuple(flags.classes or (ServiceClass(),))
    policy = flags.scheduling_policy or default_policy(flags.ttft_target, classes)
    values = {**vars(flags), "classes": classes, "scheduling_policy": policy}
    model: str = flags.model
    return ServerConfig(
        engine=EngineConfig(**{field.name: values[field.name] for field in fields(EngineConfig)}),
        host=flags.host,
        port=flags.port,
        admin_port=flags.admin_port,
        serving_metrics=flags.serving_metrics,
        served_model_name=flags.served_model_name or model.rstrip("/").rsplit("/", 1)[-1],
        generation_config=flags.generation_config,
        trust_tenant_header=flags.trust_tenant_header,
        tenant_key_file=flags.tenant_key_file,
        bounds=QueueBounds(flags.max_queued_requests, flags.max_queued_tokens),
        shed_after=flags.shed_after,
        queue_timeout=flags.queue_timeout,
        request_timeout=flags.request_timeout,
        drain_delay=flags.drain_delay,
        drain_timeout=flags.drain_timeout,
        limits_file=flags.limits_file,
        access_log=access_log_exclusions(flags),
        tracing=tracing_config(flags),
    )

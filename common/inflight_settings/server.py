"""Settings of the engine's API process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inflight_settings.setting import setting

PROBE_PATHS = ("/health", "/ready", "/metrics")
"""Paths that machines request every few seconds: no line in the access log by default, and no span ever."""

ToolCallParser = Literal[
    "auto",
    "none",
    "glm47",
    "glm45",
    "qwen3_coder",
    "qwen3_xml",
    "hermes",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v3",
    "deepseek_v31",
    "kimi_k2",
    "gemma4",
    "openai",
    "mistral",
    "llama4_pythonic",
    "llama3_json",
    "llama4_json",
    "pythonic",
]
ReasoningParser = Literal[
    "auto",
    "none",
    "openai_gptoss",
    "gemma4",
    "mistral",
    "deepseek_r1",
    "qwen3",
    "deepseek_v3",
    "deepseek_v4",
    "glm45",
    "kimi_k2",
]

SpareProcess = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Addresses, access, bounds and timeouts of requests, and telemetry."""

    host: str = setting("0.0.0.0", "address to listen on", metavar="ADDRESS")
    port: int = setting(8000, "port to listen on; 0 takes a free one", ge=0, le=65535, metavar="PORT")
    admin_port: int | None = setting(
        None,
        "port for admin calls, /metrics, /health and /ready; 0 takes a free one (default: they are on --port)",
        ge=0,
        le=65535,
        metavar="PORT",
    )
    grpc_port: int | None = setting(
        None,
        "port for vLLM's gRPC API, service VllmEngine of smg-grpc-proto, which routers call; 0 takes a free one "
        "(default: no gRPC)",
        ge=0,
        le=65535,
        metavar="PORT",
    )
    serving_metrics: bool = setting(True, "with --admin-port: /metrics is there only")
    served_model_names: tuple[str, ...] = setting(
        (),
        "what clients call the model; of several names the first is that of answers and metrics (default: the last "
        "part of MODEL)",
        metavar="NAME",
        flag="served-model-name",
    )
    api_key: tuple[str, ...] = setting(
        (),
        "requests need one of these keys, as a bearer token or in x-api-key; health, /metrics and admin calls do not "
        "(default: $INFLIGHT_API_KEY, else no keys)",
        metavar="KEY",
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "pages of these origins may send requests from browsers (CORS); * for all (default: none)", metavar="ORIGIN"
    )
    allowed_methods: tuple[str, ...] = setting(("*",), "methods of such requests", metavar="METHOD")
    allowed_headers: tuple[str, ...] = setting(("*",), "headers of such requests", metavar="HEADER")
    allow_credentials: bool = setting(False, "such requests may carry cookies")
    generation_config: str = setting(
        "auto",
        "where requests get the temperature, top_p, top_k, min_p and repetition_penalty that they do not set, and "
        "max_new_tokens, which bounds all answers: auto, the model's generation_config.json; none: OpenAI's defaults "
        "(vLLM's value `vllm`); or a folder with such a file",
        metavar="auto|none|FOLDER",
    )
    enable_tokenizer_info_endpoint: bool = setting(
        False, "/tokenizer_info shows the tokenizer's settings and the chat template, for clients that tokenize"
    )
    chat_template: Path | None = setting(
        None, "file with a chat template in Jinja (default: the model's chat_template.jinja, or tokenizer_config.json)"
    )
    tool_call_parser: ToolCallParser = setting(
        "auto",
        "format of the model's tool calls, by vLLM's names; auto: as its chat template or model type says; none: tool "
        "calls stay text",
    )
    reasoning_parser: ReasoningParser = setting(
        "auto", "format of the model's reasoning, likewise; none: reasoning is part of the content"
    )
    trust_tenant_header: bool = setting(
        False,
        "the header X-Inflight-Tenant says whose a request is: only where a gateway sets it and removes what "
        "clients send (default: it is ignored, and all requests are of one tenant)",
    )
    tenant_key_file: Path | None = setting(
        None,
        "file with the key that signs requests and their header X-Inflight-Tenant: a request is accepted only with a "
        "valid X-Inflight-Signature; FILE-previous may have the key before. Read again when it changes. With the word "
        "none in it signatures are not required, and FILE-progress may have the key that signs continued answers",
    )
    limits_file: Path | None = setting(
        None, "JSON with max_num_seqs, max_num_batched_tokens and revision to start with; need not exist"
    )
    max_queued_requests: int = setting(512, "most requests that wait; beyond it 503", ge=1)
    max_queued_tokens: int | None = setting(
        None, "most prompt tokens that wait; beyond it 503 (default: any number)", ge=1
    )
    shed_after: float | None = setting(
        None,
        "503 at once for a request that is predicted to wait longer than so many seconds (default: any wait)",
        ge=0.001,
        unit="seconds",
    )
    queue_timeout: float = setting(60.0, "seconds a request may wait for a slot, then 504", ge=0.001, unit="seconds")
    request_timeout: float = setting(
        600.0,
        "seconds without progress: from a request's arrival to its first token, and from each token to the next, then "
        "504; an answer may take any time while tokens come",
        ge=0.001,
        unit="seconds",
    )
    kv_events_config: str | None = setting(
        None,
        "publish vLLM's KV cache events, for routers that read them: JSON with enable_kv_cache_events and the other "
        "fields of vLLM's flag. The events hold the token ids of all requests, and whoever reaches the endpoint reads "
        "them (default: no events)",
        metavar="JSON",
    )
    drain_delay: float = setting(
        0.0,
        "seconds after SIGTERM in which requests are still taken, while routes still lead here",
        ge=0,
        unit="seconds",
    )
    drain_timeout: float = setting(
        120.0, "seconds after that in which running requests may finish", ge=0, unit="seconds"
    )
    spare_process: SpareProcess = setting(
        "auto",
        "keep a process that has imported its libraries and takes over from an engine process that dies; auto: where "
        "the KV cache leaves enough memory, 30 seconds after the engine is ready",
    )
    enable_access_log: bool = setting(
        False, "log a line for each request when it ends: status, ids, class, tokens, times; never prompts or outputs"
    )
    disable_access_log_for_endpoints: str = setting(
        ",".join(PROBE_PATHS), "paths without a line in the access log, separated by commas", metavar="PATHS"
    )
    otlp_traces_endpoint: str | None = setting(
        None,
        "send a trace of each request to this OpenTelemetry collector (OTLP over HTTP with protobuf), as in "
        "http://collector:4318; a URL without a path gets /v1/traces (default: $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, "
        "$OTEL_EXPORTER_OTLP_ENDPOINT, else no traces)",
        metavar="URL",
    )
    traces_sampling_ratio: float | None = setting(
        None,
        "share of requests to trace, 0 to 1, where the caller sent no trace context; with one the caller decides "
        "(default: $OTEL_TRACES_SAMPLER, else 1)",
        ge=0,
        le=1,
        metavar="RATIO",
    )

"""The page of vLLM's endpoints, request fields and flags: those that this engine has, and those that it refuses."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import UnionType
from typing import Union, get_args, get_origin

from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel

from docs.generate.markdown import GENERATED, cell, code, table
from docs.generate.parsers import PARSERS, flags_of, subcommands
from docs.generate.vllm_names import kept
from inflight_engine.server import http

_NO_ADAPTERS = "LoRA adapters are not supported"
_NO_CODE = "the engine runs no code of others"
_NODES = "models over several nodes are not supported"
_NOT_LOGGED = "prompts and answers are never logged"
_NOT_STORED = "responses are not stored"
_OF_FILES = "read from the model's files"
_REPLICAS = "replicas of the service, which the operator scales"
_TEXT_ONLY = "models read text only"
_TLS = "clients outside the cluster reach the gateway with TLS"

REPLACED_ENDPOINTS = {
    "GET /docs": "`/openapi.json`",
    "GET /kv_event_sources": "`--kv-events-config`",
    "GET /server_info": "`GET /v1/runtime_config`",
    "GET /v1/responses/{response_id}": _NOT_STORED,
    "POST /abort_requests": "a client that closes its connection",
    "POST /inference/v1/generate": "`POST /v1/generate`",
    "POST /v1/audio/transcriptions": _TEXT_ONLY,
    "POST /v1/audio/translations": _TEXT_ONLY,
    "POST /v1/load_lora_adapter": _NO_ADAPTERS,
    "POST /v1/responses/{response_id}/cancel": _NOT_STORED,
    "POST /v1/unload_lora_adapter": _NO_ADAPTERS,
    "POST /v2/embed": "`POST /v1/embeddings`",
    "WEBSOCKET /v1/realtime": _TEXT_ONLY,
}
"""The setting or endpoint in place of one, or the reason why there is none."""

REPLACED = {
    **dict.fromkeys(
        (
            *("--default-mm-loras", "--enable-lora", "--fully-sharded-loras", "--lora-dtype", "--lora-modules"),
            *("--lora-target-modules", "--max-cpu-loras", "--max-lora-rank", "--max-loras"),
            *("--enable-mixed-moe-lora-format", "--enable-moe-shared-loras", "--enable-tower-connector-lora"),
            *("--max-lora-cls-labels", "--specialize-active-lora"),
        ),
        _NO_ADAPTERS,
    ),
    **dict.fromkeys(
        (
            *("--io-processor-plugin", "--logits-processors", "--middleware", "--reasoning-parser-plugin"),
            *("--scheduler-cls", "--tool-parser-plugin", "--trust-remote-code", "--worker-cls"),
            "--worker-extension-cls",
        ),
        _NO_CODE,
    ),
    **dict.fromkeys(("--headless", "--master-addr", "--master-port", "--nnodes", "--node-rank"), _NODES),
    **dict.fromkeys(("--enable-log-deltas", "--enable-log-outputs", "--max-log-len"), _NOT_LOGGED),
    **dict.fromkeys(
        (
            *("--config-format", "--load-format", "--pooler-config"),
            "--quantization-config",
            "--tokenizer",
            "--tokenizer-mode",
        ),
        _OF_FILES,
    ),
    **dict.fromkeys(("--api-server-count", "--data-parallel-size", "--data-parallel-size-local"), _REPLICAS),
    **dict.fromkeys(("--convert", "--runner"), "always so: one engine generates and embeds"),
    **dict.fromkeys(
        (
            *("--allowed-local-media-path", "--allowed-media-domains", "--interleave-mm-strings"),
            *("--language-model-only", "--limit-mm-per-prompt", "--media-io-kwargs", "--mm-encoder-only"),
            *("--mm-processor-cache-gb", "--mm-processor-kwargs", "--skip-mm-profiling"),
            *("--enable-mm-embeds", "--trust-request-mm-kwargs", "--video-pruning-method", "--video-pruning-rate"),
        ),
        _TEXT_ONLY,
    ),
    **dict.fromkeys(
        (
            *("--enable-ssl-refresh", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-certfile"),
            "--ssl-ciphers",
            "--ssl-keyfile",
        ),
        _TLS,
    ),
    "--async-scheduling": "always so; `--no-async-scheduling` turns it off",
    "--code-revision": "`--revision`",
    "--compilation-config": "nothing to choose; `--enforce-eager` disables CUDA graphs",
    "--default-chat-template-kwargs": "`chat_template_kwargs` of requests, or a template in `--chat-template`",
    "--disable-fastapi-docs": "there are no pages; `/openapi.json` has the schema",
    "--disable-log-stats": "statistics are metrics, and no lines of the log",
    "--disable-uvicorn-access-log": "off unless `--enable-access-log` is set",
    "--distributed-executor-backend": "nothing to choose",
    "--download-dir": "environment variable `HF_HOME`",
    "--enable-auto-tool-choice": "always so",
    "--enable-chunked-prefill": "always so",
    "--enable-log-requests": f"`--enable-access-log`; {_NOT_LOGGED}",
    "--enable-prefix-caching": "always so; `--no-prefix-caching` turns it off",
    "--enable-prompt-tokens-details": "always so",
    "--enable-request-id-headers": "always so",
    "--enable-server-load-tracking": "always so; `GET /load`",
    "--grpc": "`--grpc-port`",
    "--hf-token": "environment variable `HF_TOKEN`",
    "--kv-cache-memory-bytes": "`--kv-cache-memory`",
    "--kv-offloading-size": "`--swap-space`",
    "--log-config-file": "`--log-format` and `--log-level`",
    "--max-logprobs": "20",
    "--max-num-queued-reqs": "`--max-queued-requests`",
    "--max-num-queued-tokens": "`--max-queued-tokens`",
    "--model": "the argument MODEL",
    "--num-gpu-blocks-override": "`--num-kv-blocks`",
    "--override-generation-config": "`--generation-config FOLDER`",
    "--pipeline-parallel-size": "not supported",
    "--shutdown-timeout": "`--drain-timeout`",
    "--speculative-config": "not supported",
    "--sse-keep-alive-interval": "always so, every 15 s",
    "--structured-outputs-config": "nothing to choose: llguidance",
    "--tokenizer-revision": "`--revision`",
    "--trust-request-chat-template": "templates of requests are refused",
    "--uvicorn-log-level": "`--log-level`",
    "--watermark": "`--kv-headroom`",
}
"""The setting in place of a flag, or the reason why there is none."""

DIFFERENT = {
    "--api-key": "`INFLIGHT_API_KEY` in place of the variable `VLLM_API_KEY`",
    "--attention-backend": "names of this engine's backends",
    "--chat-template": "a file only",
    "--dtype": "`auto`, `float32`, `bfloat16` or `float16`",
    "--generation-config": "`none` in place of `vllm`",
    "--grpc-port": "port of vLLM's `--grpc`, beside HTTP",
    "--kv-cache-dtype": "`auto` or `fp8`",
    "--quantization": "formats of checkpoints are read from them; `int8` and `int4` quantize on a CPU",
    "--reasoning-parser": f"[formats](inflight-engine.md) of this engine; `auto`, the default: {_OF_FILES}",
    "--scheduling-policy": "`fcfs` and `priority`, and others",
    "--seed": "another one at each start, unless it is set; in vLLM 0",
    "--tool-call-parser": "as `--reasoning-parser`",
}
"""Remarks on flags whose values differ."""

_TEXT = """# vLLM's endpoints, fields and flags

Names in vLLM {version}, and what this engine does with each. Another path gets status 404. A request with a field that
is not taken gets status 400 with the name of the field in `param`; a flag that is not taken ends the start with an
error that names it.
"""

_ENDPOINTS = """
## Endpoints

Served, `/tokenizer_info` with `--enable-tokenizer-info-endpoint` as in vLLM:

"""

_FIELDS = """
## Fields of requests

`yes`: taken. `no effect`: any value is accepted, since none has a meaning here. `400`: refused, except with null or a
value that has no effect. Empty: vLLM has no such field there; fields that only OpenAI's or Anthropic's API has are in
[the engine's page](../engine.md).

"""

_FLAGS = """
## Flags

Taken, with the same name:

"""

_OTHERS = """
Refused, with something else in their place, or a reason:

"""

_REST = """
Refused without one:

"""

_SWITCHES = """
So are the other forms of switches (`--no-` and `--disable-` before what they turn on), except `--no-async-scheduling`,
short forms, and names with underscores, such as `--max_model_len`.
"""


def page() -> str:
    """The page."""
    names = kept()
    taken = taken_fields()
    paths = [path for path in names.fields if path in taken]
    fields = sorted({field for path in paths for field in names.fields[path]})
    rows = [[code(field), *(_mark(field, names.fields[path], taken[path]) for path in paths)] for field in fields]
    ours = flags_of(subcommands(PARSERS["inflight-engine"]())["serve"])
    same = [flag for flag in names.flags if flag in ours]
    return "".join(
        (
            GENERATED,
            _TEXT.format(version=names.version),
            _ENDPOINTS,
            _listed(each for each in names.endpoints if each in served()),
            _refused(names.endpoints, served(), REPLACED_ENDPOINTS, "endpoint"),
            _FIELDS,
            table(("field", *map(code, paths)), rows),
            _FLAGS,
            table(("flag", "values that differ"), ([code(flag), DIFFERENT.get(flag, "")] for flag in same)),
            _refused(names.flags, ours, REPLACED, "flag"),
            _SWITCHES,
        )
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(code, names)) + "\n"


def _refused(theirs: Sequence[str], ours: Container[str], replaced: Mapping[str, str], what: str) -> str:
    """The names that are not ours: those of `replaced` with what it says, then the others."""
    refused = [each for each in theirs if each not in ours]
    rows = [[code(each), cell(replaced[each])] for each in refused if each in replaced]
    rest = _listed(each for each in refused if each not in replaced)
    return "".join((_OTHERS, table((what, "here"), rows), _REST, rest))


def served() -> set[str]:
    """Returns the method and path of each endpoint for clients."""
    return {f"{method} {route.path}" for route in _routes() for method in route.methods or ()}


def _mark(field: str, theirs: Iterable[str], taken: Mapping[str, bool]) -> str:
    if field not in theirs:
        return ""
    return {None: "400", True: "yes", False: "no effect"}[taken.get(field)]


def bodies() -> dict[str, tuple[type[BaseModel], ...]]:
    """Returns the types of the bodies that the engine takes, by path; of several, a body is one of them."""
    return {
        route.path: tuple(_models(route.body_field.field_info.annotation))
        for route in _routes()
        if route.body_field is not None
    }


def _routes() -> Iterator[APIRoute]:
    for each in iter_modules(http.__path__, f"{http.__name__}."):
        for router in vars(import_module(each.name)).values():
            if isinstance(router, APIRouter):
                yield from (route for route in router.routes if isinstance(route, APIRoute))


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _models(each)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def taken_fields() -> dict[str, dict[str, bool]]:
    """Returns the fields that take any value, by path; True: it has a meaning.

    Fields without a meaning have the type `object`, with a validator where only values without effect are accepted.
    """
    return {
        path: {
            info.alias or name: info.annotation is not object
            for model in models
            for name, info in model.model_fields.items()
            if info.annotation is not object or not info.metadata
        }
        for path, models in bodies().items()
    }

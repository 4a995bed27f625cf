"""The command line of `inflight-engine serve`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from inflight_engine.server.settings.config import ServerConfig
from inflight_engine.server.settings.config_file import with_file
from inflight_engine.server.settings.kv_events import kv_events_config
from inflight_engine.server.settings.tracing import tracing_config
from inflight_policies.deadline import OVERDUE_WAIT_SHARE
from inflight_settings.engine import EngineConfig
from inflight_settings.flags import add_flags, chosen
from inflight_settings.server import ServerSettings
from inflight_settings.setting import settings_of

DESCRIPTION = """\
Serve one model over HTTP: OpenAI's chat completions and completions, /v1/generate, Prometheus metrics.

MODEL is builtin://smollm2, a folder with a Hugging Face model, a Hugging Face name, or the URL of a folder in an object
store or on an HTTP server: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER, https://HOST/FOLDER.
Calls for admins (PATCH /v1/runtime_config, POST /admin/drain, /admin/sleep, /admin/wake, GET /admin/record) need the
token in $INFLIGHT_ADMIN_TOKEN, or in the file named by $INFLIGHT_ADMIN_TOKEN_FILE; with --admin-port they have a port
of their own."""

EXAMPLE = """\
example:
  inflight-engine serve builtin://smollm2 --port 8000
  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Name three colors of the rainbow."}], "max_tokens": 32}'"""


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """Names are vLLM's where vLLM has the setting."""
    parser.add_argument(
        "model",
        help="what to serve; may also stand in the file of --config",
        metavar="MODEL",
        nargs="?",
        default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--config",
        help="YAML or JSON file whose fields are the names of these flags; a flag wins",
        type=Path,
        metavar="FILE",
    )
    add_flags(parser, ServerSettings)
    add_flags(parser, EngineConfig)


def read_config(parser: argparse.ArgumentParser, argv: Sequence[str]) -> ServerConfig:
    """The configuration from flags and the file of `--config`. Wrong usage exits with status 2."""
    given = vars(with_file(parser, argv))
    if "model" not in given:
        parser.error("MODEL is missing; for example: inflight-engine serve builtin://smollm2")
    server = chosen(ServerSettings, given)
    server["served_model_names"] = server.get("served_model_names") or (_last_part(given["model"]),)
    key = os.environ.get("INFLIGHT_API_KEY")  # an empty one is wrong usage: it must not leave the server open
    server["api_key"] = server.get("api_key") or (() if key is None else (key,))
    try:
        tracing = tracing_config(server.get("otlp_traces_endpoint"), server.get("traces_sampling_ratio"), os.environ)
        kv_events = kv_events_config(server.get("kv_events_config"))
    except ValueError as error:
        parser.error(str(error))
    timeouts = {
        name: server.get(name, settings_of(ServerSettings)[name].default)
        for name in ("queue_timeout", "request_timeout")
    }
    engine = EngineConfig(
        **chosen(EngineConfig, given) | {"request_timeout": timeouts["request_timeout"]},
        late_wait=OVERDUE_WAIT_SHARE * timeouts["queue_timeout"],
        block_events=kv_events is not None,
    )
    config = ServerConfig(engine=engine, tracing=tracing, kv_events=kv_events, **server)
    if (conflict := config.conflict()) is not None:
        parser.error(conflict)
    return config


def _last_part(model: str) -> str:
    return model.rstrip("/").rsplit("/", 1)[-1]

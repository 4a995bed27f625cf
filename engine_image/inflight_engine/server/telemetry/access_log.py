"""The access log: one line for a request after its end. It never contains prompts, outputs, query strings or
credentials."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

from starlette.types import Scope

from inflight_engine import logs
from inflight_engine.server.telemetry.exchange import Exchange

MAX_PATH = 256
"""Characters of a path that are written."""

log = logging.getLogger("inflight_engine.access")


class AccessLog:
    """Writes a line for each request.

    Args:
        excluded: paths without a line; None: lines of all requests, at level debug only.
    """

    def __init__(self, excluded: frozenset[str] | None) -> None:
        self._excluded = excluded or frozenset()
        self._level = logging.DEBUG if excluded is None else logging.INFO
        if excluded is not None and not log.isEnabledFor(logging.INFO):
            log.setLevel(logging.INFO)  # an enabled access log is written even with --log-level warning

    def write(self, exchange: Exchange, scope: Scope) -> None:
        """The line of a request that has ended."""
        if scope["path"] in self._excluded or not log.isEnabledFor(self._level):
            return
        path = quote(scope["path"], errors="replace")[:MAX_PATH]  # a client may put a line break into it
        fields: dict[str, Any] = {
            "method": scope["method"],
            "path": path,
            "status": exchange.status,
            "client": _peer(scope),
            **_of_scheduling(exchange),
            **_of_call(exchange),
            "total_ms": _milliseconds(exchange.ended - exchange.began),
        }
        log.log(self._level, "request", extra=logs.with_fields(fields))


def _of_scheduling(exchange: Exchange) -> dict[str, Any]:
    scheduling = exchange.scheduling
    if scheduling is None:
        return {}
    return {"class": scheduling.service_class, "tenant": scheduling.tenant or None, "priority": scheduling.priority}


def _of_call(exchange: Exchange) -> dict[str, Any]:
    call = exchange.call
    if call is None:
        return {}
    return {
        "prompt_tokens": call.num_prompt_tokens,
        "cached_tokens": call.num_cached_tokens,
        "output_tokens": call.num_output_tokens,
        "queue_ms": _milliseconds(exchange.queue_seconds),
        "ttft_ms": _milliseconds(exchange.first_token_seconds),
        "preemptions": exchange.num_preemptions,
        "finish_reason": ",".join(dict.fromkeys(exchange.finish_reasons)) or None,
        "aborted": exchange.aborted,
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


def _peer(scope: Scope) -> str | None:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else None

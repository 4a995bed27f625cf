"""Attributes of the spans of a request.

Names come from OpenTelemetry's semantic conventions for HTTP (https://opentelemetry.io/docs/specs/semconv/http/) and
for generative AI (https://github.com/open-telemetry/semantic-conventions-genai). Beside them stand names that only vLLM
uses: `gen_ai.latency.*`, `gen_ai.request.id`, `gen_ai.usage.prompt_tokens`, `gen_ai.usage.completion_tokens`.
Attributes never contain prompts or outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from starlette.types import Scope

from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.telemetry.exchange import Exchange

QUEUE, PREFILL, DECODE, PREEMPTED = "queue", "prefill", "decode", "preempted"


class RequestPhase(NamedTuple):
    """`began`, `ended`: seconds on the monotonic clock."""

    name: str
    began: float
    ended: float


def request_phases(generation: Generation, ended: float) -> list[RequestPhase]:
    """The phases of a generation, in order and without gaps, from its arrival to its end.

    `queue` lasts until the step in which it takes a slot, `prefill` until its first token, `decode` until its end or a
    preemption. Then it is `preempted` until it takes a slot again, and `prefill` until its next token: its tokens are
    recomputed, or copied back.

    Args:
        ended: its end where it has none of its own.
    """
    timings = generation.timings
    last = max(timings.arrived, ended if timings.finished is None else timings.finished)
    changes: list[tuple[float | None, str]] = [
        (timings.arrived, QUEUE),
        (timings.admitted, PREFILL),
        (timings.first_token, DECODE),
    ]
    for preemption in generation.preemptions:
        changes += [(preemption.began, PREEMPTED), (preemption.resumed, PREFILL), (preemption.next_token, DECODE)]
    # Stable: of changes at the same time the order above holds.
    happened = sorted(((at, name) for at, name in changes if at is not None), key=lambda change: change[0])
    phases: list[RequestPhase] = []
    for at, name in happened:
        at = min(at, last)
        if phases and phases[-1].name == name:
            continue
        if phases:
            phases[-1] = phases[-1]._replace(ended=at)
        phases.append(RequestPhase(name, at, last))
    return phases


Value: TypeAlias = str | bool | int | float | Sequence[str]

MAX_TEXT = 256
"""Characters of a client's text in an attribute."""

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/generate": "text_completion",
}


def first_attributes(exchange: Exchange, scope: Scope) -> dict[str, Value]:
    """Attributes known at the start of the request."""
    found: dict[str, Value] = {
        "http.request.method": scope["method"],
        "url.path": scope["path"].encode(errors="replace").decode()[:MAX_TEXT],
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
        "gen_ai.request.id": exchange.request_id,
    }
    if scope.get("client"):
        found["client.address"] = scope["client"][0]
    return found


def last_attributes(exchange: Exchange, route: str | None, model: str) -> dict[str, Value]:
    """Attributes known at its end. `route`: the path that it was routed to; None: no route."""
    found: dict[str, Value] = {}
    if route is not None:
        found["http.route"] = route
    if exchange.status is not None:
        found["http.response.status_code"] = exchange.status
    if exchange.failed:
        found["error.type"] = _error_type(exchange)
    if route in _OPERATIONS:
        found |= {
            "gen_ai.operation.name": _OPERATIONS[route],
            "gen_ai.provider.name": "inflight",
            "gen_ai.request.model": model,
        }
    if exchange.scheduling is not None:
        found["inflight.class"] = exchange.scheduling.service_class
        found["inflight.priority"] = exchange.scheduling.priority
        if exchange.scheduling.tenant:
            found["inflight.tenant"] = exchange.scheduling.tenant
    if exchange.call is not None:
        found["gen_ai.response.model"] = model
        found |= _asked(exchange.call) | _used(exchange, exchange.call) | _latencies(exchange, exchange.call)
    return found


def _error_type(exchange: Exchange) -> str:
    error = None if exchange.call is None else exchange.call.error
    return error.code if error is not None and error.code is not None else str(exchange.status)


def _asked(call: Call) -> dict[str, Value]:
    sampling = call.choices[0].request.sampling
    asked: dict[str, Value] = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.stream": call.streaming,
    }
    if sampling.top_k:
        asked["gen_ai.request.top_k"] = sampling.top_k
    if len(call.choices) > 1:
        asked["gen_ai.request.choice.count"] = len(call.choices)
    return asked


def _used(exchange: Exchange, call: Call) -> dict[str, Value]:
    used: dict[str, Value] = {
        "gen_ai.usage.input_tokens": call.num_prompt_tokens,
        "gen_ai.usage.output_tokens": call.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.num_cached_tokens,
        "gen_ai.usage.prompt_tokens": call.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": call.num_output_tokens,
        "gen_ai.response.finish_reasons": exchange.finish_reasons,
        "inflight.cached_tokens": call.num_cached_tokens,
        "inflight.preemptions": exchange.num_preemptions,
        "inflight.aborted": exchange.aborted,
    }
    lost = sum(choice.tries for choice in call.choices)
    if lost:
        used["inflight.engine_failures"] = lost
    return used


def _latencies(exchange: Exchange, call: Call) -> dict[str, Value]:
    """Seconds. Of several choices, prefill and decode are those of the first."""
    phases = request_phases(call.choices[0], exchange.ended)
    prefill, decode = _total(phases, PREFILL), _total(phases, DECODE)
    found: dict[str, Value] = {"gen_ai.latency.e2e": exchange.ended - exchange.began}
    for name, seconds in (
        ("time_in_queue", exchange.queue_seconds),
        ("time_to_first_token", exchange.first_token_seconds),
        ("time_in_model_prefill", prefill),
        ("time_in_model_decode", decode),
        ("time_in_model_inference", None if prefill is None else prefill + (decode or 0.0)),
    ):
        if seconds is not None:
            found[f"gen_ai.latency.{name}"] = seconds
    return found


def _total(phases: Sequence[RequestPhase], name: str) -> float | None:
    lengths = [phase.ended - phase.began for phase in phases if phase.name == name]
    return sum(lengths) if lengths else None

"""Conversion of a relay's question to the input of the picker."""

from __future__ import annotations

from math import inf

from inflight_gateway.link.wire import Ask
from inflight_gateway.request.prefix import BLOCK_TOKENS
from inflight_gateway.types import RequestView, ServiceConfig

_FIRST_OF_ALL, _LAST_OF_ALL = -100, 100
"""First and last priority that engines accept; they refuse requests with others. Retried requests wait with the first
one: a client may be in the middle of an answer."""


def view(ask: Ask, config: ServiceConfig, now: float) -> RequestView:
    """Returns the request of an attempt. Args: now: seconds of the monotonic clock."""
    body, again, arrived = ask.body, ask.attempt > 1, now - ask.age_s
    chosen = config.service_class(body.service_class)
    priority = chosen.priority
    if body.priority is not None and _FIRST_OF_ALL <= body.priority <= _LAST_OF_ALL:
        priority = body.priority
    # A continuation has no first token to come.
    ttft_s = None if again else config.ttft_of(chosen)
    return RequestView(
        request_id=ask.id,
        service=config.key,
        arrived=arrived,
        path=ask.path,
        prompt_tokens=body.prompt_tokens,
        max_tokens=body.max_tokens,
        service_class=chosen.name,
        priority=_FIRST_OF_ALL if again else priority,
        tenant=ask.tenant,
        prefix=body.prefix(ask.tenant),
        block_tokens=BLOCK_TOKENS,
        deadline=inf if ttft_s is None else arrived + ttft_s + config.ttft_per_token_s * body.prompt_tokens,
        body_bytes=ask.body_bytes,
        attempt=ask.attempt,
        avoid=frozenset(ask.avoid),
        choices=body.choices,
        external_id=ask.external_id,
        handed_over=ask.handed_over,
    )

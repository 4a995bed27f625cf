"""What all generation endpoints do: tokenize, check, send to the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request

from inflight_engine.server.errors import bad_request
from inflight_engine.server.generation import Generation
from inflight_engine.server.prepare import Tokenizer, prepare
from inflight_engine.server.schema import SamplingFields
from inflight_engine.server.service import Service

_LONG_TEXT = 32_768
"""Bytes of body above which tokenizing (about 1 ms for 4 kB) would hold up the streams of others."""


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(_service)]


async def start(
    service: Service,
    fields: SamplingFields,
    tokenize: Callable[[Tokenizer], list[int]],
    *,
    size: int,
    max_tokens: int | None,
    default_max_tokens: int | None,
    prompt_field: str,
) -> Generation:
    """From a checked body to a generation in the engine's queue.

    Args:
        tokenize: makes the prompt's token ids; a ValueError says what is wrong with the prompt.
        size: characters of the prompt; long ones are tokenized off the event loop.

    Raises:
        ApiError: 400, or 503 when it cannot be taken now.
    """
    arrived = time.monotonic()
    service.refuse_if_full()
    tokenizer, facts = service.model
    try:
        prompt = tokenize(tokenizer) if size < _LONG_TEXT else await asyncio.to_thread(tokenize, tokenizer)
    except ValueError as error:
        raise bad_request(f"{prompt_field}: {error}", prompt_field) from None
    request_id = service.new_request_id()
    request = prepare(
        fields,
        prompt,
        facts,
        max_tokens=max_tokens,
        default_max_tokens=default_max_tokens,
        default_seed=service.default_seed(request_id),
        prompt_field=prompt_field,
    )
    return service.submit(request_id, request, arrived)

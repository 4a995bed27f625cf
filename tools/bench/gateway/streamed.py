"""A streamed completion, as its client sees it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp

_KEPT_BYTES = 300
"""Of the end of an answer: shows whether it is whole, or the error."""


class Streamed(NamedTuple):
    """Seconds from the request to the first bytes and to the end of its answer."""

    ttft: float
    latency: float


async def completion(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> Streamed:
    """Send `body` to `url`, as a stream that runs up to `max_tokens`.

    Raises:
        RuntimeError: it was not answered, or not whole.
    """
    body = {"model": "smollm2", **body, "ignore_eos": True, "stream": True}
    sent, first, end = time.monotonic(), None, b""
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
        async for chunk in answer.content.iter_any():
            first = first or time.monotonic()
            end = (end + chunk)[-_KEPT_BYTES:]
    if answer.status != 200 or first is None or not end.rstrip().endswith(b"data: [DONE]"):
        raise RuntimeError(f"status {answer.status}: {end.decode(errors='replace')}")
    return Streamed(first - sent, time.monotonic() - sent)

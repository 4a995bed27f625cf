"""Estimate of a request's tokens before it runs."""

from __future__ import annotations

from inflight_gateway.paths import GENERATING
from inflight_gateway.tenants.accounts import TenantKey
from inflight_gateway.types import RequestView

FIRST_ANSWER = 256
"""Output tokens that are expected of a tenant's first request without `max_tokens`."""

LEARNING = 0.1
"""Weight of the newest answer in the mean."""

MAX_TENANTS = 10_000
"""Maximum entries; beyond it the oldest one is evicted."""


class Estimates:
    """Mean output length of each tenant at each service."""

    def __init__(self) -> None:
        self._means: dict[TenantKey, float] = {}

    def tokens(self, key: TenantKey, request: RequestView) -> int:
        """Prompt and answer: `max_tokens`, the upper bound of the output, else the tenant's mean output."""
        if request.path not in GENERATING:
            return 0
        output = request.max_tokens if request.max_tokens is not None else round(self._means.get(key, FIRST_ANSWER))
        return request.prompt_tokens + output

    def learn(self, key: TenantKey, request: RequestView, output_tokens: int) -> None:
        """The request's response was complete."""
        if request.path not in GENERATING:
            return
        mean = self._means.get(key, FIRST_ANSWER)
        self._means[key] = mean + LEARNING * (output_tokens - mean)
        if len(self._means) > MAX_TENANTS:
            del self._means[next(iter(self._means))]

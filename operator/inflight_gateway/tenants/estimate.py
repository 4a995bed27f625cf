"""Estimate of a request's tokens before it ends."""

from __future__ import annotations

from math import inf

from inflight_gateway.request.paths import GENERATING
from inflight_gateway.tenants.answer_lengths import Answer, Lengths
from inflight_gateway.tenants.limits import TenantKey
from inflight_gateway.types import RequestView

MAX_TENANTS = 10_000
"""Most tenants that are kept; beyond it the oldest one is evicted."""


class Estimates:
    """Output lengths of each tenant at each service."""

    def __init__(self) -> None:
        self._lengths: dict[TenantKey, Lengths] = {}

    def tokens(self, request: RequestView) -> int:
        """Returns the tokens of prompt and answers. An answer counts `max_tokens`, its upper bound, or else the
        tenant's mean."""
        if request.path not in GENERATING:
            return 0
        output = request.max_tokens if request.max_tokens is not None else round(self._of(request).mean())
        return request.prompt_tokens + request.choices * output

    def answer_tokens(self, request: RequestView) -> float:
        """Returns the expected output tokens of each choice of a request that starts now."""
        most = _most(request)
        return self._of(request).left(0.0, most) if most else 0.0

    def begin(self, request: RequestView) -> Answer:
        """Adds a request that starts."""
        return self._of(request).begin(_most(request))

    def learn(self, request: RequestView, output_tokens: int) -> None:
        """Learns from a complete response. Args: output_tokens: of all choices, which count as of one length."""
        if request.path in GENERATING:
            self._of(request).ended(round(output_tokens / request.choices))

    def _of(self, request: RequestView) -> Lengths:
        key = TenantKey(request.service, request.tenant)
        lengths = self._lengths.get(key)
        if lengths is None:
            lengths = self._lengths[key] = Lengths()
            if len(self._lengths) > MAX_TENANTS:
                del self._lengths[next(iter(self._lengths))]
        return lengths


def _most(request: RequestView) -> float:
    """Returns the most output tokens that a request allows."""
    if request.path not in GENERATING:
        return 0.0
    return inf if request.max_tokens is None else request.max_tokens

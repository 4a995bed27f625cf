"""Bounds of the hold queue."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.types import HoldBounds, Refusal, RequestView

TENANT_FACTOR = 9
"""A tenant may hold so many times what is still free, so one that floods leaves a tenth of the bounds to the others,
and two leave a nineteenth: dynamic thresholds, Choudhury and Hahne 1998, "Dynamic Queue Length Thresholds for
Shared-Memory Packet Switches" (IEEE/ACM Transactions on Networking)."""


@dataclass(slots=True)
class Room:
    """Size of a queue. Attributes: body_bytes: bytes of the requests' bodies."""

    requests: int = 0
    prompt_tokens: int = 0
    body_bytes: int = 0

    def add(self, request: RequestView, sign: int = 1) -> None:
        self.requests += sign
        self.prompt_tokens += sign * request.prompt_tokens
        self.body_bytes += sign * request.body_bytes


def exceeded(request: RequestView, bounds: HoldBounds, all_: Room, tenant: Room) -> str | None:
    """Returns the bound that rejects the request, as text; None: it may wait.

    Args:
        all_: size of the service's queue. tenant: the part of the request's tenant.
    """
    free_requests = bounds.max_requests - all_.requests
    free_bytes = bounds.max_bytes - all_.body_bytes
    if free_requests < 1:
        return f"{all_.requests} requests wait, and spec.gateway.hold.maxRequests allows {bounds.max_requests}"
    if free_bytes < request.body_bytes:
        return (
            f"{all_.body_bytes} bytes wait, this request has {request.body_bytes}, and spec.gateway.hold.maxBytes "
            f"allows {bounds.max_bytes}"
        )
    if not request.tenant:
        return None
    if tenant.requests >= TENANT_FACTOR * free_requests:
        return f"{tenant.requests} of the {all_.requests} waiting requests are of this tenant"
    if tenant.body_bytes + request.body_bytes > TENANT_FACTOR * free_bytes:
        return f"{tenant.body_bytes} of the {all_.body_bytes} waiting bytes are of this tenant"
    return None


def queue_full(service: ServiceKey, why: str, retry_after_s: float) -> Refusal:
    """Returns the refusal of a request beyond the queue, with the status and code that an engine uses for its own."""
    return Refusal(
        status=503,
        code="queue_full",
        message=f"the queue of {service} is full ({why}); try again later or add replicas",
        headers=(("retry-after", str(max(1, math.ceil(retry_after_s)))),),
    )

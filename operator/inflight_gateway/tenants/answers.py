"""Responses to clients about keys and limits, in OpenAI's wording."""

from __future__ import annotations

import math

from inflight_gateway.tenants.limits import Limit, Standing, Verdict
from inflight_gateway.types import RateLimits, Refusal, ServiceConfig

Headers = tuple[tuple[str, str], ...]

KEYS_RETRY_S = 5
"""Retry-After while a service's Secret with API keys cannot be read."""

CONCURRENT_RETRY_S = 1
"""Retry-After of a tenant with too many requests in flight: one of them may end at any time."""


def no_keys(config: ServiceConfig) -> Refusal:
    """Returns the refusal of all requests while the service's Secret does not exist, or the gateway may not read it."""
    return Refusal(
        503,
        "api_keys_unavailable",
        f"The gateway has no API keys of service {config.key.name}: the Secret {config.api_keys_secret} does not exist,"
        " or the gateway may not read it. Create a key with `kubectl inflight keys create"
        f" {config.key.name} --tenant NAME -n {config.key.namespace}`, and list the Secret's name in the value"
        " gateway.apiKeySecrets of the Helm chart.",
        (("retry-after", str(KEYS_RETRY_S)),),
    )


def no_gateway_key(config: ServiceConfig) -> Refusal:
    """Returns the refusal of all requests to a service with API keys while the gateway cannot sign their tenants."""
    return Refusal(
        503,
        "gateway_key_unavailable",
        f"The gateway cannot sign requests for service {config.key.name}: it has no key. The operator creates the"
        " Secret RELEASE-gateway-key in the gateway's namespace, and the kubelet mounts it within about a minute.",
        (("retry-after", str(KEYS_RETRY_S)),),
    )


def no_key() -> Refusal:
    """Returns the refusal of a request without an API key."""
    return _unauthorized("The request has no API key. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`.")


def no_token() -> Refusal:
    """Returns the refusal of a request without a token at a service that takes no API keys."""
    return _unauthorized("The request has no valid token. Send it as `Authorization: Bearer TOKEN`.")


def wrong_key() -> Refusal:
    """Returns the refusal of a key that is none of the service's keys."""
    return _unauthorized("The API key is not valid for this service. Ask the operator of the service for a new key.")


def expired_key(key_id: str) -> Refusal:
    """Returns the refusal of an expired key."""
    return _unauthorized(f"The API key {key_id} has expired. Ask the operator of the service for a new key.")


def _unauthorized(message: str) -> Refusal:
    return Refusal(401, "invalid_api_key", message, (("www-authenticate", "Bearer"),))


def over_limit(config: ServiceConfig, tenant: str, limits: RateLimits, verdict: Verdict) -> Refusal:
    """Returns a 429 with Retry-After in whole seconds and, for clients that support it, in milliseconds."""
    assert verdict.refused_by is not None
    whose = f"Tenant {tenant}" if tenant else "This service"
    if verdict.refused_by is Limit.CONCURRENT:
        said = f"{whose} has {limits.concurrent_requests} requests in flight at service {config.key.name}, its limit."
        wait = float(CONCURRENT_RETRY_S)
    else:
        requests = verdict.refused_by is Limit.REQUESTS
        limit = limits.requests_per_minute if requests else limits.tokens_per_minute
        said = f"{whose} has reached its limit of {limit} {verdict.refused_by} per minute at service {config.key.name}."
        wait = verdict.retry_after_s
    seconds = max(1, math.ceil(wait))
    headers = (("retry-after", str(seconds)), ("retry-after-ms", str(math.ceil(wait * 1000))), *limit_headers(verdict))
    return Refusal(429, "rate_limit_exceeded", f"{said} Try again in {seconds} s.", headers)


def limit_headers(verdict: Verdict) -> Headers:
    """Returns OpenAI's `x-ratelimit-*` headers; none for limits that are not set."""
    found: list[tuple[str, str]] = []
    for name, standing in (("requests", verdict.requests), ("tokens", verdict.tokens)):
        if standing is not None:
            found += _headers(name, standing)
    return tuple(found)


def _headers(name: str, standing: Standing) -> Headers:
    return (
        (f"x-ratelimit-limit-{name}", str(standing.limit)),
        (f"x-ratelimit-remaining-{name}", str(standing.remaining)),
        (f"x-ratelimit-reset-{name}", f"{standing.reset_s:.3f}".rstrip("0").rstrip(".") + "s"),
    )

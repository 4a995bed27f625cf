"""Routes of the inner listener: the picker's choice, else each service's own engines."""

from __future__ import annotations

from collections.abc import Iterable

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.proxy.errors import fixed
from inflight_gateway.proxy.names import INNER, LONGEST_SILENCE, METADATA, PICKED, Json, header, service_cluster
from inflight_gateway.request.headers import (
    ATTEMPT,
    DESTINATION,
    ENDPOINT,
    FIRST_TOKEN_WITHIN,
    FROM_RELAYS,
    MAX_ATTEMPTS,
    SERVICE,
    TRIES,
)
from inflight_gateway.request.paths import PUBLIC
from inflight_gateway.types import ServiceConfig

RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{value}-{unit}" for unit in ("requests", "tokens") for value in ("limit", "remaining", "reset")
)
"""Response headers that come from the picker's metadata, under OpenAI's names."""

RETRY_ON = "connect-failure,refused-stream,reset-before-request,retriable-status-codes"
"""Conditions of a retry by Envoy: refusals, after which no engine has begun the request."""

RETRY_ON_LOSS = "reset"
"""Condition of a loss: an engine closes its connection before the head of a response, or sends none in time. The
request may be the cause: relays count these losses and retry themselves."""

_DEFAULT_RETRIES = 2


def inner_routes(services: Iterable[tuple[ServiceConfig, Iterable[str]]]) -> Json:
    """Returns the routes of the inner listener. Args: services: each with its host names, without ports."""
    return {
        "name": INNER,
        "ignore_port_in_host_matching": True,
        "validate_clusters": False,
        "virtual_hosts": [
            *(_virtual_host(config, sorted(hosts)) for config, hosts in sorted(services, key=lambda one: one[0].key)),
            {"name": "any", "domains": ["*"], "routes": [_picked(), _no_picker()]},
        ],
        "request_headers_to_remove": [*FROM_RELAYS],
        "response_headers_to_add": [
            header(ENDPOINT, "%UPSTREAM_REMOTE_ADDRESS%"),
            header(TRIES, "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"),
            header(FIRST_TOKEN_WITHIN, _metadata("first_token_within")),
            header(MAX_ATTEMPTS, _metadata("max_attempts")),
            header(SERVICE, _metadata("service")),
            *(header(name, _metadata(name)) for name in RATE_LIMIT_HEADERS),
        ],
    }


def _virtual_host(config: ServiceConfig, hosts: list[str]) -> Json:
    if config.api_keys_secret is not None:
        message = "the gateway cannot check API keys at the moment; try again"
        closed = {"name": "no-keys", "match": {"prefix": "/"}, **fixed(503, "gateway_unavailable", message)}
        without_picker = [closed]
    else:
        without_picker = [_relayed(config.key), _least_requests(config.key), _internal_path()]
    return {"name": str(config.key), "domains": hosts, "routes": [_picked(), *without_picker]}


def _picked() -> Json:
    """Returns the route of picked requests. The outer listener removes its header from requests of clients."""
    return {
        "name": PICKED,
        "match": {"prefix": "/", "headers": [{"name": DESTINATION, "present_match": True}]},
        "route": _to(PICKED, RETRY_ON),
    }


def _relayed(key: ServiceKey) -> Json:
    """Returns the route of relays without a picker. Relays retry after a loss themselves: with retries by Envoy, too, a
    request could kill more engines than they permit. Only relays can have set this header."""
    return {
        "name": "least-requests-relayed",
        "match": {"safe_regex": {"regex": PUBLIC}, "headers": [{"name": ATTEMPT, "present_match": True}]},
        "route": _to(service_cluster(key), RETRY_ON),
    }


def _least_requests(key: ServiceKey) -> Json:
    return {
        "name": "least-requests",
        "match": {"safe_regex": {"regex": PUBLIC}},
        "route": _to(service_cluster(key), f"{RETRY_ON},{RETRY_ON_LOSS}"),
    }


def _internal_path() -> Json:
    message = "the gateway serves no such path at the moment"
    return {"name": "internal-path", "match": {"prefix": "/"}, **fixed(404, "not_found", message)}


def _no_picker() -> Json:
    message = "the gateway has only host names to go by at the moment: send the request to NAME.NAMESPACE, or try again"
    return {"name": "no-picker", "match": {"prefix": "/"}, **fixed(503, "gateway_unavailable", message)}


def _to(cluster: str, retry_on: str) -> Json:
    """Returns a route to a cluster. The picker sets x-envoy-max-retries: one attempt for each endpoint.
    x-envoy-retry-on adds to `retry_on`."""
    return {
        "cluster": cluster,
        "timeout": "0s",
        "idle_timeout": LONGEST_SILENCE,
        "retry_policy": {
            "retry_on": retry_on,
            "retriable_status_codes": [503],
            "num_retries": _DEFAULT_RETRIES,
            "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
        },
    }


def _metadata(name: str) -> str:
    return f"%DYNAMIC_METADATA({METADATA}:{name})%"

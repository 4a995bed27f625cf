"""Limit of requests by address of the client, in Envoy's local rate limit filter:
https://www.envoyproxy.io/docs/envoy/v1.40.0/configuration/http/http_filters/local_rate_limit_filter."""

from __future__ import annotations

from inflight_gateway.proxy.resources import Json, extension, header

BURST_S = 2
"""Seconds whose requests an address may send at once."""

MAX_ADDRESSES = 10_000
"""Most addresses whose requests are counted; the one that was quiet for the longest time is forgotten first."""


def rate_limit(per_second: int) -> Json:
    """Returns the filter. Args: per_second: requests of one address, in this process."""
    always = {"default_value": {"numerator": 100}}
    return extension(
        "filters.http.local_ratelimit",
        "filters.http.local_ratelimit.v3.LocalRateLimit",
        stat_prefix="address",
        filter_enabled=always,
        filter_enforced=always,
        rate_limits=[{"actions": [{"remote_address": {}}]}],
        # An entry without a value has a bucket for each value.
        descriptors=[{"entries": [{"key": "remote_address"}], "token_bucket": _bucket(per_second)}],
        max_dynamic_descriptors=MAX_ADDRESSES,
        response_headers_to_add=[header("retry-after", "1")],
    )


def _bucket(per_second: int) -> Json:
    return {"max_tokens": BURST_S * per_second, "tokens_per_fill": per_second, "fill_interval": "1s"}

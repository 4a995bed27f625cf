"""Pages of other origins in browsers (CORS), in Envoy's filter:
https://www.envoyproxy.io/docs/envoy/v1.40.0/configuration/http/http_filters/cors_filter."""

from __future__ import annotations

from collections.abc import Sequence

from inflight_gateway.proxy.resources import Json, extension, typed
from inflight_gateway.request.headers import REQUEST_ID

_NAME = "filters.http.cors"
_PACKAGE = f"{_NAME}.v3"


def cors() -> Json:
    """Returns the filter, which does what the virtual host says. It stands before those that may refuse a request:
    preflights have no credentials, and pages need the headers to read errors."""
    return extension(_NAME, f"{_PACKAGE}.Cors")


def policy(origins: Sequence[str]) -> Json:
    """Returns what a virtual host says of pages. Args: origins: those whose pages may ask; `*`: all."""
    return {
        f"envoy.{_NAME}": typed(
            f"envoy.extensions.{_PACKAGE}.CorsPolicy",
            allow_origin_string_match=[{"exact": origin} for origin in origins],
            allow_methods="GET, HEAD, POST",
            # Browsers do not take the asterisk for Authorization.
            allow_headers="*, authorization",
            expose_headers=f"{REQUEST_ID}, retry-after",
            max_age="3600",
        )
    }

"""Verification of JSON Web Tokens, in Envoy's filter:
https://www.envoyproxy.io/docs/envoy/v1.40.0/configuration/http/http_filters/jwt_authn_filter."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from inflight_gateway.proxy.resources import Json, extension, file
from inflight_gateway.request.headers import JWT_TENANT
from inflight_gateway.settings import Jwt

_CLUSTER = "jwks"

_LOOKS_LIKE_JWT = r"(?i:bearer) +e[yw][A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
"""Authorization with a token of three parts, of which the first begins as a JSON object in base64url. Only these are
verified: API keys in the same header go to the relay as they are. `allow_missing` would refuse them as malformed, and
`allow_missing_or_failed` would pass expired tokens."""

_FETCH_S = 300
"""Seconds between two requests for the issuer's keys."""


def jwt_filter(jwt: Jwt) -> Json:
    """Returns the filter. A token that is not valid gets status 401, or 403 for its audience; of a valid
    one, the tenant remains. Envoy reads a file of keys at its start only."""
    provider = {
        "issuer": jwt.issuer,
        "audiences": list(jwt.audiences),
        "require_expiration": True,
        "forward": False,
        "from_headers": [{"name": "Authorization", "value_prefix": prefix} for prefix in ("Bearer ", "bearer ")],
        "claim_to_headers": [{"header_name": JWT_TENANT, "claim_name": jwt.tenant_claim}],
        "jwt_cache_config": {"jwt_cache_size": 1000},
        **_keys(jwt),
    }
    token = {"name": "authorization", "string_match": {"safe_regex": {"regex": _LOOKS_LIKE_JWT}}}
    return extension(
        "filters.http.jwt_authn",
        "filters.http.jwt_authn.v3.JwtAuthentication",
        providers={"issuer": provider},
        rules=[{"match": {"prefix": "/", "headers": [token]}, "requires": {"provider_name": "issuer"}}],
    )


def _keys(jwt: Jwt) -> Json:
    if jwt.jwks_file is not None:
        return {"local_jwks": file(jwt.jwks_file)}
    uri = {"uri": jwt.jwks_uri, "cluster": _CLUSTER, "timeout": "5s"}
    return {"remote_jwks": {"http_uri": uri, "cache_duration": f"{_FETCH_S}s", "async_fetch": {}}}


def jwks_cluster(jwt: Jwt) -> Json:
    """Returns the cluster of the issuer's server, whose certificate is verified."""
    address = urlsplit(jwt.jwks_uri)
    host = address.hostname or ""
    context = extension(
        "transport_sockets.tls",
        "transport_sockets.tls.v3.UpstreamTlsContext",
        sni=host,
        common_tls_context={
            "validation_context": {
                "trusted_ca": file(jwt.jwks_ca),
                "match_typed_subject_alt_names": [{"san_type": _kind_of(host), "matcher": {"exact": host}}],
            }
        },
    )
    socket = {"socket_address": {"address": host, "port_value": address.port or 443}}
    return {
        "name": _CLUSTER,
        "type": "STRICT_DNS",
        "dns_lookup_family": "ALL",
        "connect_timeout": "2s",
        "transport_socket": context,
        "load_assignment": {
            "cluster_name": _CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket}}]}],
        },
    }


def _kind_of(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "DNS"
    return "IP_ADDRESS"

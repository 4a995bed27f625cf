"""Envoy's own answers to clients, in OpenAI's error format. Those of the relay are not changed."""

from __future__ import annotations

from inflight_gateway.proxy.resources import Json, extension, header


def replies() -> Json:
    """Returns the format of Envoy's local replies."""
    return {
        "mappers": [
            {"filter": _UPGRADE, "status_code": 400, **_REFUSED},
            {"filter": _status("EQ", 401), **_error("%LOCAL_REPLY_BODY%", "authentication_error", "invalid_token")},
            {"filter": _status("EQ", 403), **_error("%LOCAL_REPLY_BODY%", "permission_error", "invalid_token")},
            {"filter": _status("EQ", 429), **_error(_TOO_MANY, "rate_limit_error", "rate_limit_exceeded")},
            # Envoy's status for an unknown transfer coding: a client error.
            {"filter": _status("EQ", 501), "status_code": 400, **_REFUSED},
            {"filter": _status("EQ", 503), "headers_to_add": [header("retry-after", "1")], **_FAILED},
            {"filter": _status("GE", 500), **_FAILED},
            {"filter": _status("GE", 400), **_REFUSED},
        ]
    }


def _status(op: str, value: int) -> Json:
    compared = {"default_value": value, "runtime_key": "inflight.unused"}
    return {"status_code_filter": {"comparison": {"op": op, "value": compared}}}


def _error(message: str, kind: str, code: str = "gateway_%RESPONSE_CODE_DETAILS%") -> Json:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"body_format_override": {"json_format": {"error": error}, "content_type": "application/json"}}


_UPGRADE: Json = {
    "extension_filter": extension(
        "access_loggers.extension_filters.cel",
        "access_loggers.filters.cel.v3.ExpressionFilter",
        expression="response.code_details == 'upgrade_failed'",
    )
}
"""Filter of Envoy's 403 to a request for another protocol."""

_TOO_MANY = "too many requests from the address %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%; try again in a second"
_FAILED = _error("gateway: %LOCAL_REPLY_BODY%", "server_error")
_REFUSED = _error("the gateway refuses the request: %RESPONSE_CODE_DETAILS%", "invalid_request_error")
"""The details name what is wrong, such as `http1.content_length_and_chunked_not_allowed`."""

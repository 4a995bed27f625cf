"""Envoy's local replies, in OpenAI's error format."""

from __future__ import annotations

from inflight_gateway.proxy.names import Json, extension, header
from inflight_gateway.request.headers import UPSTREAM_FAILURE
from inflight_gateway.request.openai_error import error_body


def outer_replies() -> Json:
    """Returns the format of Envoy's local replies to clients; replies of picker and relay come from the inner side."""
    return {
        "mappers": [
            # Envoy's status for an unknown transfer coding: a client error.
            {"filter": _status("EQ", 501), "status_code": 400, **_REFUSED},
            {"filter": _status("EQ", 503), "headers_to_add": [header("retry-after", "1")], **_FAILED},
            {"filter": _status("GE", 500), **_FAILED},
            {"filter": _status("GE", 400), **_REFUSED},
        ]
    }


def inner_replies() -> Json:
    """Returns the format of replies to failures that Envoy detects: no engine, timeouts, a body that is too large and a
    lack of memory (the last two have no response flag). Responses of the picker have no flag either, and are not
    changed."""
    return {
        "mappers": [
            {"filter": _OVERLOADED, "headers_to_add": [header("retry-after", "1")], **_FAILED},
            {
                "filter": {"response_flag_filter": {}},
                "headers_to_add": [header(UPSTREAM_FAILURE, "%RESPONSE_FLAGS%")],
                **_FAILED,
            },
            {"filter": _status("EQ", 413), **_REFUSED},
        ]
    }


def _status(op: str, value: int) -> Json:
    compared = {"default_value": value, "runtime_key": "inflight.unused"}
    return {"status_code_filter": {"comparison": {"op": op, "value": compared}}}


def _error(message: str, kind: str) -> Json:
    error = {"message": message, "type": kind, "param": None, "code": "gateway_%RESPONSE_CODE_DETAILS%"}
    return {"body_format_override": {"json_format": {"error": error}, "content_type": "application/json"}}


_OVERLOADED: Json = {
    "extension_filter": extension(
        "access_loggers.extension_filters.cel",
        "access_loggers.filters.cel.v3.ExpressionFilter",
        expression="response.code_details == 'overload'",
    )
}
"""Filter of requests that the overload manager refuses (`bootstrap.py`)."""

_FAILED = _error("gateway: %LOCAL_REPLY_BODY%", "server_error")
_REFUSED = _error("the gateway refuses the request: %RESPONSE_CODE_DETAILS%", "invalid_request_error")
"""The details name what is wrong, such as `http1.content_length_and_chunked_not_allowed`."""


def fixed(status: int, code: str, message: str) -> Json:
    """Returns a route's action and headers for a fixed response."""
    return {
        "direct_response": {"status": status, "body": {"inline_string": error_body(status, code, message).decode()}},
        "response_headers_to_add": [
            header("content-type", "application/json"),
            *([header("retry-after", "1")] if status == 503 else []),
        ],
    }

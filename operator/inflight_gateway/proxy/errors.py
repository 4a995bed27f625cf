"""Answers that Envoy gives itself, in the shape of OpenAI's errors."""

from __future__ import annotations

from inflight_gateway.openai_error import error_body
from inflight_gateway.proxy.names import Json, header


def local_replies() -> Json:
    """For failures that Envoy finds: no engine, timeouts, too long a body (which has no response flag). Answers of the
    picker have no flag either, and stay as they are."""
    body = {
        "error": {
            "message": "gateway: %LOCAL_REPLY_BODY%",
            "type": "server_error",
            "param": None,
            "code": "gateway_%RESPONSE_CODE_DETAILS%",
        }
    }
    in_shape = {"body_format_override": {"json_format": body, "content_type": "application/json"}}
    too_long = {"op": "EQ", "value": {"default_value": 413, "runtime_key": "inflight.unused"}}
    return {
        "mappers": [
            {"filter": {"response_flag_filter": {}}, **in_shape},
            {"filter": {"status_code_filter": {"comparison": too_long}}, **in_shape},
        ]
    }


def fixed(status: int, code: str, message: str) -> Json:
    """A route's action and headers for an answer that is always the same."""
    return {
        "direct_response": {"status": status, "body": {"inline_string": error_body(status, code, message).decode()}},
        "response_headers_to_add": [
            header("content-type", "application/json"),
            *([header("retry-after", "1")] if status == 503 else []),
        ],
    }

"""Answers that Envoy gives itself, in the shape of OpenAI's errors."""

from __future__ import annotations

from inflight_gateway.openai_error import error_body
from inflight_gateway.proxy.names import Json, header


def local_replies() -> Json:
    """For failures that Envoy finds: no engine, too long a body, timeouts. Answers of the picker have no response flag
    and stay as they are."""
    body = {
        "error": {
            "message": "gateway: %LOCAL_REPLY_BODY%",
            "type": "server_error",
            "param": None,
            "code": "gateway_%RESPONSE_CODE_DETAILS%",
        }
    }
    return {
        "mappers": [
            {
                "filter": {"response_flag_filter": {}},
                "body_format_override": {"json_format": body, "content_type": "application/json"},
            }
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

"""Bodies of errors, in the form of the path's API."""

from __future__ import annotations

import json

from inflight_gateway.request.paths import MESSAGES

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}

_ANTHROPIC_TYPES = {**_TYPES, 413: "request_too_large", 503: "overloaded_error"}


def is_anthropic(path: str) -> bool:
    """Returns whether clients of a path expect Anthropic's errors."""
    return path.startswith(MESSAGES)


def error_type(status: int, *, anthropic: bool = False) -> str:
    """Returns the `type` of the error of a status."""
    if anthropic:
        return _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_body(path: str, status: int, code: str | None, message: str, param: str | None = None) -> bytes:
    """Returns the body of an error response: OpenAI's `{"error": {"message", "type", "param", "code"}}`, or
    Anthropic's `{"type": "error", "error": {"type", "message"}}`, with our code.

    `json` and not msgspec: `message` may quote half a surrogate pair.

    Args:
        path: of the request, as sent. param: the field of the request that is wrong.
    """
    anthropic = is_anthropic(path)
    kind = error_type(status, anthropic=anthropic)
    if anthropic:
        return json.dumps({"type": "error", "error": {"type": kind, "message": message, "code": code}}).encode()
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()

"""Errors in OpenAI's format, `{"error": {"message", "type", "param", "code"}}`, and in that of Anthropic."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field


@dataclass(eq=False)
class ApiError(Exception):
    """Error for a client without a response, or with an aborted one.

    Attributes:
        status: HTTP status code.
        message: one sentence with the error and, if possible, the remedy.
        param: the field of the request that is wrong.
        code: OpenAI's machine-readable name of the error.
        retry_after: seconds after which a retry is useful.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    @property
    def type(self) -> str:
        """OpenAI's error type for the status."""
        return _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        # Not msgspec: a field name out of a request may hold a lone surrogate, which only escapes can write.
        return json.dumps({"error": error}).encode()

    def all_headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", **self.headers}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        return headers


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def anthropic_body(error: ApiError) -> bytes:
    """An error in Anthropic's format, `{"type": "error", "error": {"type", "message"}}`, with OpenAI's `code`.

    Source: https://platform.claude.com/docs/en/api/errors
    """
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    described = {"type": kind, "message": error.message, "code": error.code}
    return json.dumps({"type": "error", "error": described}).encode()


def is_anthropic(path: str) -> bool:
    """The errors of a path are in Anthropic's format, also of its API's paths that do not exist here."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is invalid; a retry does not help."""
    return ApiError(400, message, param, code)

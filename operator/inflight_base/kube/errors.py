"""Errors of calls to the Kubernetes API."""

from __future__ import annotations

import json
from typing import Any

LONGEST_MESSAGE = 300
"""Most characters kept of a response that is no JSON object, such as the error page of a proxy."""


class KubeApiError(Exception):
    """The API server refused a call, or is unreachable.

    Attributes:
        status: HTTP status; 0 without a response.
        message: message of the API server.
        retry_after: seconds to wait before the next try, where the API server sends Retry-After (as with 429).
        reason: reason in the Kubernetes Status, such as `Forbidden`; empty without one.
        about_object: whether the refusal names an object: with status 404, the path is right and the object is missing.
    """

    def __init__(
        self,
        action: str,
        status: int,
        message: str,
        retry_after: float | None = None,
        reason: str = "",
        about_object: bool = False,
    ) -> None:
        super().__init__(f"{action}: {message}" + (f" (HTTP {status})" if status else ""))
        self.status = status
        self.message = message
        self.retry_after = retry_after
        self.reason = reason
        self.about_object = about_object


def json_object(content: bytes) -> dict[str, Any] | None:
    """The JSON object in a response; None for any other content, such as error pages of proxies."""
    try:
        answer = json.loads(content)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def refusal(action: str, status: int, content: bytes, retry_after: str | None = None) -> KubeApiError:
    """The error of a response with another status than 2xx.

    Args:
        content: body of the response: mostly a Kubernetes Status.
        retry_after: the header. The API server sends whole seconds; the date form of the header is not parsed.
    """
    answer = json_object(content) or {}
    message = str(answer.get("message") or content[:LONGEST_MESSAGE].decode(errors="replace"))
    seconds = float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else None
    about_object = bool((answer.get("details") or {}).get("name"))
    return KubeApiError(action, status, message, seconds, str(answer.get("reason") or ""), about_object)

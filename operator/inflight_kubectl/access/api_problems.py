"""Errors of the API server: explanations and remedies."""

from __future__ import annotations

import re

import urllib3

from inflight_base.kube import errors
from inflight_kubectl.output import Problem

_ECHO = re.compile(r'Invalid value: "(?:[^"\\]|\\.)*": ')
"""Pattern of the request's content, which the API server's error repeats before the reason: it may be a whole
object."""


class ApiProblem(Problem):
    """A response of the API server other than 2xx.

    Attributes:
        status: HTTP status.
        reason: reason of the Kubernetes Status, such as `Forbidden`; empty without one.
        missing_object: True if the path is right and the object it names does not exist.
    """

    def __init__(self, what: str, remedy: str, status: int, reason: str = "", missing_object: bool = False) -> None:
        super().__init__(what, remedy)
        self.status = status
        self.reason = reason
        self.missing_object = missing_object


class UnreachableProblem(Problem):
    """The API server does not respond."""


def refusal(status: int, body: bytes, path: str, context: str) -> ApiProblem:
    """Explains a rejected request.

    Args:
        body: body of the response, a Kubernetes Status if the API server itself responded.
        path: path of the request.
        context: context of the kubeconfig; empty inside a pod.
    """
    error = errors.refusal(path, status, body)
    message = _ECHO.sub("Invalid value: ", " ".join(error.message.split()))[:500]
    reason = error.reason
    if status == 401:
        whom = f" of context {context}" if context else ""
        return ApiProblem(
            f"the API server refuses the credentials{whom}",
            "Log in again, or choose another context with --context",
            status,
            reason,
        )
    if status == 403:
        remedy = "Ask an administrator for this permission; `kubectl inflight doctor` lists all that the commands need"
        return ApiProblem(f"forbidden: {message.removesuffix('.')}", remedy, status, reason)
    if status == 404 and not error.about_object and "/inflight.dev/" in path:
        remedy = "Install the chart: helm install inflight helm/inflight -n inflight-system --create-namespace"
        return ApiProblem(
            "this cluster has no InferenceService resource (inflight.dev/v1alpha1)", remedy, status, reason
        )
    missing = status == 404 and error.about_object
    return ApiProblem(f"the API server answers {status}: {message or 'without a reason'}", "", status, reason, missing)


def cause(error: BaseException) -> str:
    """Returns the innermost reason, shortened."""
    while True:
        inner = getattr(error, "reason", None) or error.__cause__
        if not isinstance(inner, BaseException):
            break
        error = inner
    if isinstance(error, (urllib3.exceptions.TimeoutError, TimeoutError)):
        return "it timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return " ".join(str(error).rpartition(": ")[2].split()) or type(error).__name__

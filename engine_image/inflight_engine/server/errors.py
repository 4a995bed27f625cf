"""Responses from errors: those of this server, and FastAPI's findings in a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fastapi import Response
from fastapi.exceptions import RequestValidationError

from inflight_contract.errors import ApiError, anthropic_body, bad_request, is_anthropic

_MAX_NAME = 128
"""Characters of a client's field name in a message."""

_Responses: TypeAlias = dict[int | str, dict[str, Any]]


def _documented(**fields: str) -> _Responses:
    """Errors of all statuses in the OpenAPI description. `fields`: of an error, and their types."""
    error = {"type": "object", "properties": {name: {"type": kind.split()} for name, kind in fields.items()}}
    schema = {"type": "object", "properties": {"error": error}, "required": ["error"]}
    return {"default": {"description": "An error", "content": {"application/json": {"schema": schema}}}}


ERRORS = _documented(message="string", type="string", param="string null", code="string null")
ANTHROPIC_ERRORS = _documented(message="string", type="string", code="string null")


def describe_invalid(invalid: RequestValidationError) -> ApiError:
    """The first finding, as a 400 with `param`."""
    finding = invalid.errors()[0]
    kind, location = finding["type"], finding["loc"][1:]
    if kind == "json_invalid":
        return bad_request(f"the body is not JSON: {finding['ctx']['error']}")
    if kind == "too_many_values":
        return bad_request(f"the body {finding['msg']}", code=kind)
    param = _param(location, invalid.body, missing=kind == "missing")
    if not param:
        return bad_request("the body must be a JSON object sent with `Content-Type: application/json`")
    message = {
        "extra_forbidden": "this parameter is unknown",
        "missing": "this field is required",
        "model_type": "must be an object",
        "model_attributes_type": "must be an object",
        "union_tag_not_found": "must be an object with a type",
    }.get(kind, finding["msg"][:1].lower() + finding["msg"][1:])
    code = "unsupported_parameter" if kind in ("extra_forbidden", "unsupported_parameter") else None
    return bad_request(f"{param}: {message}", param, code)


def _param(location: Sequence[str | int], body: Any, *, missing: bool) -> str:
    """The path of the field, without the names that pydantic gives to the cases of a union.

    Args:
        missing: the body lacks the field.
    """
    path: list[str] = []
    for part in location:
        if isinstance(body, Mapping) and isinstance(part, str) and (part in body or (missing and part is location[-1])):
            body = body.get(part)
        elif isinstance(body, list) and isinstance(part, int) and part < len(body):
            body = body[part]
        else:
            continue
        path.append(str(part)[:_MAX_NAME])
    return ".".join(path)


def error_response(error: ApiError, path: str = "") -> Response:
    """The error in the format of the path's API; OpenAI's is the usual one."""
    body = anthropic_body(error) if is_anthropic(path) else error.body()
    return Response(body, error.status, error.all_headers())

"""Envoy's own answers to clients, in the error format of the path's API. Those of the relay are not changed."""

from __future__ import annotations

from inflight_gateway.proxy.resources import Json, extension, header
from inflight_gateway.request.error_body import error_type
from inflight_gateway.request.paths import MESSAGES


def replies() -> Json:
    """Returns the format of Envoy's local replies."""
    return {"mappers": [*_mappers(anthropic=True), *_mappers(anthropic=False)]}


def _mappers(*, anthropic: bool) -> list[Json]:
    """Returns the formats, of which the first that fits counts. Args: anthropic: for paths of Anthropic's API."""

    def mapper(found: Json, status: int, message: str, code: str = _DETAILS, **more: object) -> Json:
        kind = error_type(status, anthropic=anthropic)
        if anthropic:
            body: Json = {"type": "error", "error": {"type": kind, "message": message, "code": code}}
            found = {"and_filter": {"filters": [_ANTHROPIC, found]}}
        else:
            body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        body_format = {"json_format": body, "content_type": "application/json"}
        return {"filter": found, "body_format_override": body_format, **more}

    return [
        mapper(_UPGRADE, 400, _REFUSED, status_code=400),
        mapper(_status("EQ", 401), 401, "%LOCAL_REPLY_BODY%", "invalid_token"),
        mapper(_status("EQ", 403), 403, "%LOCAL_REPLY_BODY%", "invalid_token"),
        mapper(_status("EQ", 429), 429, _TOO_MANY, "rate_limit_exceeded"),
        # Envoy's status for an unknown transfer coding: a client error.
        mapper(_status("EQ", 501), 400, _REFUSED, status_code=400),
        mapper(_status("EQ", 413), 413, _REFUSED),
        mapper(_status("EQ", 503), 503, _FAILED, headers_to_add=[header("retry-after", "1")]),
        mapper(_status("EQ", 504), 504, _FAILED),
        mapper(_status("GE", 500), 500, _FAILED),
        mapper(_status("GE", 400), 400, _REFUSED),
    ]


def _status(op: str, value: int) -> Json:
    compared = {"default_value": value, "runtime_key": "inflight.unused"}
    return {"status_code_filter": {"comparison": {"op": op, "value": compared}}}


_ANTHROPIC: Json = {"header_filter": {"header": {"name": ":path", "string_match": {"prefix": MESSAGES}}}}

_UPGRADE: Json = {
    "extension_filter": extension(
        "access_loggers.extension_filters.cel",
        "access_loggers.filters.cel.v3.ExpressionFilter",
        expression="response.code_details == 'upgrade_failed'",
    )
}
"""Filter of Envoy's 403 to a request for another protocol."""

_TOO_MANY = "too many requests from the address %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%; try again in a second"
_FAILED = "gateway: %LOCAL_REPLY_BODY%"
_REFUSED = "the gateway refuses the request: %RESPONSE_CODE_DETAILS%"
"""The details name what is wrong, such as `http1.content_length_and_chunked_not_allowed`."""
_DETAILS = "gateway_%RESPONSE_CODE_DETAILS%"

"""Messages to Envoy: https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ext_proc/v3/external_processor.proto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ImmediateResponse,
    ProcessingResponse,
)
from envoy.type.v3.http_status_pb2 import HttpStatus
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct

from inflight_gateway.headers import SERVICE
from inflight_gateway.openai_error import error_body
from inflight_gateway.proxy.names import LONGEST_MESSAGE_TIMEOUT_S
from inflight_gateway.types import Refusal, ServiceKey

Stage = Literal["request_headers", "request_body"]
"""Messages that Envoy waits on for a response."""

Pairs = Iterable[tuple[str, str]]

CONTINUE_HEADERS = ProcessingResponse(request_headers=HeadersResponse())
"""The head does not suffice: requests the body."""

_OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def header_pairs(headers: Any) -> list[tuple[str, str]]:
    """Of an `HttpHeaders`. Envoy gives values as bytes, which are ASCII mostly."""
    return [(one.key, one.value or one.raw_value.decode("utf-8", "replace")) for one in headers.headers.headers]


def go_on(stage: Stage, to_set: Pairs, to_remove: Iterable[str], metadata: Mapping[str, Mapping[str, str]]) -> Any:
    """The request continues with these headers, by the route that then matches. Args: metadata: by namespace."""
    mutation = HeaderMutation(set_headers=_options(to_set), remove_headers=to_remove)
    common = CommonResponse(header_mutation=mutation, clear_route_cache=True)
    dynamic = Struct()
    dynamic.update({namespace: dict(fields) for namespace, fields in metadata.items()})
    if stage == "request_headers":
        return ProcessingResponse(request_headers=HeadersResponse(response=common), dynamic_metadata=dynamic)
    return ProcessingResponse(request_body=BodyResponse(response=common), dynamic_metadata=dynamic)


def refuse(refusal: Refusal, service: ServiceKey | None) -> Any:
    """The request ends here, with an error in OpenAI's format."""
    headers = [("content-type", "application/json"), *refusal.headers]
    if service is not None:
        headers.append((SERVICE, str(service)))
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=refusal.status),
            headers=HeaderMutation(set_headers=_options(headers)),
            body=error_body(refusal.status, refusal.code, refusal.message),
            details=refusal.code,
        )
    )


def wait_longer(seconds: float) -> Any:
    """Envoy's timeout for the answer, from now; Envoy accepts one such message for each response that it waits for."""
    bounded = min(int(seconds) + 1, LONGEST_MESSAGE_TIMEOUT_S)
    return ProcessingResponse(override_message_timeout=Duration(seconds=bounded))


def _options(pairs: Pairs) -> list[Any]:
    return [
        HeaderValueOption(header=HeaderValue(key=key, raw_value=value.encode()), append_action=_OVERWRITE)
        for key, value in pairs
    ]

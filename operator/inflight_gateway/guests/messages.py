"""Messages to Envoy: https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ext_proc/v3/external_processor.proto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.service.ext_proc.v3.external_processor_pb2 import HeadersResponse, ProcessingResponse
from google.protobuf.duration_pb2 import Duration

from inflight_gateway.request.error_body import error_body
from inflight_gateway.types import Refusal

Stage = Literal["request_headers", "request_body"]
"""Messages that Envoy waits on for a response."""

Pairs = Iterable[tuple[str, str]]

CONTINUE_HEADERS = ProcessingResponse(request_headers=HeadersResponse())
"""Answer to the head of a request of another gateway, which sends the body next."""

_LONGEST_TIMEOUT_S = 3600
"""Longest message timeout to ask for: the longest hold."""

_MESSAGE_CHARACTERS = 2000
"""Longest error message: it may quote text of a client, such as a model of any length."""

_OVERWRITE = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def header_pairs(headers: Any) -> list[tuple[str, str]]:
    """Returns the pairs of an `HttpHeaders`. Envoy gives values as bytes, which are ASCII mostly."""
    return [(one.key, one.value or one.raw_value.decode("utf-8", "replace")) for one in headers.headers.headers]


def go_on(stage: Stage, to_set: Pairs, to_remove: Iterable[str], metadata: Mapping[str, Mapping[str, str]]) -> Any:
    """Makes the answer with which a request continues with these headers, by the route that then matches. Args:
    metadata: values by namespace."""
    answer = ProcessingResponse()
    # Set in place: constructors copy what they are given, which takes four times as long.
    common = (answer.request_headers if stage == "request_headers" else answer.request_body).response
    common.clear_route_cache = True
    _set(common.header_mutation, to_set)
    common.header_mutation.remove_headers.extend(to_remove)
    for namespace, values in metadata.items():
        fields = answer.dynamic_metadata.fields[namespace].struct_value.fields
        for name, value in values.items():
            fields[name].string_value = value
    return answer


def refuse(refusal: Refusal, path: str) -> Any:
    """Makes the answer that ends a request for a path with an error."""
    answer = ProcessingResponse()
    response = answer.immediate_response
    response.status.code = refusal.status
    _set(response.headers, [("content-type", "application/json"), *refusal.headers])
    response.body = error_body(path, refusal.status, refusal.code, refusal.message[:_MESSAGE_CHARACTERS])
    response.details = refusal.code
    return answer


def wait_longer(seconds: float) -> Any:
    """Makes the message that sets Envoy's timeout for the answer, from now; Envoy accepts one such message for each
    response that it waits for."""
    bounded = min(int(seconds) + 1, _LONGEST_TIMEOUT_S)
    return ProcessingResponse(override_message_timeout=Duration(seconds=bounded))


def _set(mutation: Any, pairs: Pairs) -> None:
    """Adds headers to set. Args: mutation: a `HeaderMutation`."""
    for key, value in pairs:
        option = mutation.set_headers.add()
        option.append_action = _OVERWRITE
        option.header.key = key
        option.header.raw_value = value.encode()

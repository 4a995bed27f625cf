"""The external processor: one stream for each request, open until its response has ended.

A request whose body a relay has read takes one message each way; the picker asks Envoy for the body of any other.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse, TrailersResponse

from inflight_gateway.guests import messages
from inflight_gateway.guests.exchange import Exchange, Parts
from inflight_gateway.request.body import NO_FIELDS, parse
from inflight_gateway.request.headers import SUBSET
from inflight_gateway.request.view import Head, addresses

_log = logging.getLogger(__name__)

_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
"""Namespace of the metadata in which another gateway names the endpoints that may be picked (Gateway API Inference
Extension, docs/proposals/004-endpoint-picker-protocol)."""


class Processor(external_processor_pb2_grpc.ExternalProcessorServicer):  # type: ignore[misc]  # no types
    """Serves the Envoy of this pod. An exception ends the stream; Envoy then continues as without a picker."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.open_streams = 0

    async def Process(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        exchange: Exchange | None = None
        self.open_streams += 1
        try:
            async for message in requests:
                kind = message.WhichOneof("request")
                if kind == "request_headers":
                    head = Head(
                        messages.header_pairs(message.request_headers),
                        end_of_stream=bool(message.request_headers.end_of_stream),
                    )
                    exchange = Exchange(self._parts, head, allowed(message))
                    del message  # with hashes of the prompt: the stream stays open until the response ends
                    refusal = exchange.refusal()
                    if refusal is not None:
                        yield refusal
                    elif head.body is not None:
                        async for answer in exchange.place("request_headers", head.body, head.body_bytes):
                            yield answer
                    else:
                        yield messages.SEND_BODY
                elif kind == "request_body" and exchange is not None:
                    content = message.request_body.body
                    answers = exchange.place("request_body", parse(content) or NO_FIELDS, len(content))
                    del message, content  # the body
                    async for answer in answers:
                        yield answer
                elif kind == "response_trailers":
                    yield ProcessingResponse(response_trailers=TrailersResponse())
                else:
                    raise ValueError(f"Envoy sent {kind}, which its processing mode excludes")
        except Exception:
            _log.exception("a request goes on without the picker")
            raise
        finally:
            self.open_streams -= 1
            if exchange is not None:
                exchange.close()


def allowed(message: Any) -> frozenset[str] | None:
    """Returns the addresses that another gateway allows for a request, possibly none; None: all. They come from the
    metadata: a client may send the header."""
    struct = message.metadata_context.filter_metadata.get(_SUBSET_NAMESPACE)
    if struct is None or SUBSET not in struct.fields:
        return None
    value = struct.fields[SUBSET]
    listed = [item.string_value for item in value.list_value.values]
    return addresses(",".join([value.string_value, *listed]))

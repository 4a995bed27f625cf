"""External processing for other gateways, which use this picker as their endpoint picker.

Protocol: Gateway API Inference Extension, docs/proposals/004-endpoint-picker-protocol.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeadersResponse,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.guests import messages
from inflight_gateway.guests.exchange import Exchange, Parts
from inflight_gateway.guests.head import Head, addresses
from inflight_gateway.request.body import NO_FIELDS, parse
from inflight_gateway.request.headers import SUBSET
from inflight_gateway.request.paths import api_of
from inflight_gateway.settings import MAX_BODY_BYTES
from inflight_gateway.types import Refusal

_log = logging.getLogger(__name__)

CHUNK_BYTES = 62_000
"""Bytes of a part of a returned body: less than the 64 KiB that an HTTP/2 stream takes before its receiver reads."""

MAX_BODIES_BYTES = 256 * 2**20
"""Most bytes kept of all bodies that come in parts and are not complete yet, or not sent back."""

_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
"""Namespace of the metadata in which another gateway names the endpoints that may be picked (Gateway API Inference
Extension, docs/proposals/004-endpoint-picker-protocol)."""


@dataclass(slots=True)
class Bodies:
    """Memory of bodies that come in parts. Attributes: kept: bytes of all streams."""

    kept: int = 0


class EndpointPickerProcessor(external_processor_pb2_grpc.ExternalProcessorServicer):  # type: ignore[misc]  # no types
    """Serves one stream for each request, open until its response has ended.

    Bodies come whole (mode BUFFERED), or in parts that must be sent back (FULL_DUPLEX_STREAMED).

    Args:
        pool: service whose InferencePool the calls are for; None: it depends on the request.
    """

    def __init__(self, parts: Parts, bodies: Bodies, pool: Callable[[], ServiceKey | None]) -> None:
        self._parts = parts
        self._bodies = bodies
        self._pool = pool

    async def Process(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        stream = _Stream(self._parts, self._bodies, self._pool())
        try:
            async for message in requests:
                async for answer in stream.take(message):
                    yield answer
                del message  # possibly a body: the stream stays open until the response ends
        except Exception:
            _log.exception("a request of another gateway was not answered")
            raise
        finally:
            stream.close()


class _Stream:
    def __init__(self, parts: Parts, bodies: Bodies, pool: ServiceKey | None) -> None:
        self._parts = parts
        self._bodies = bodies
        self._pool = pool
        self._kept = 0
        self._exchange: Exchange | None = None
        self._body = bytearray()
        self._duplex = self._duplex_response = False
        self._answered = False

    def close(self) -> None:
        self._forget_body()
        if self._exchange is not None:
            self._exchange.close()

    async def take(self, message: Any) -> AsyncIterator[Any]:
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            async for answer in self._head(message):
                yield answer
        elif kind == "request_body":
            async for answer in self._request_body(message.request_body):
                yield answer
        elif kind == "request_trailers":
            if self._duplex and not self._answered:
                async for answer in self._whole(ends=False):
                    yield answer
            yield ProcessingResponse(request_trailers=TrailersResponse())
        elif kind == "response_headers":
            self._note_status(message.response_headers)
            yield ProcessingResponse(response_headers=HeadersResponse())
        elif kind == "response_body":
            part = message.response_body
            if self._duplex_response:
                yield ProcessingResponse(response_body=_sent_back(part.body, ends=part.end_of_stream))
            else:
                yield ProcessingResponse(response_body=BodyResponse())
        elif kind == "response_trailers":
            yield ProcessingResponse(response_trailers=TrailersResponse())

    async def _head(self, message: Any) -> AsyncIterator[Any]:
        modes = message.protocol_config
        self._duplex = modes.request_body_mode == ProcessingMode.FULL_DUPLEX_STREAMED
        self._duplex_response = modes.response_body_mode == ProcessingMode.FULL_DUPLEX_STREAMED
        head = Head(messages.header_pairs(message.request_headers))
        self._exchange = Exchange(self._parts, head, _allowed(message), self._pool)
        refusal = self._exchange.refusal()
        if refusal is not None:
            self._answered = True
            yield refusal
        elif message.request_headers.end_of_stream:
            self._answered = True
            async for answer in self._exchange.place("request_headers", NO_FIELDS, 0):
                yield answer
        elif not self._duplex:
            yield messages.CONTINUE_HEADERS

    def _note_status(self, head: Any) -> None:
        status = dict(messages.header_pairs(head)).get(":status", "")
        if self._exchange is not None and status.isascii() and status.isdigit():
            self._exchange.answered(int(status))

    async def _request_body(self, part: Any) -> AsyncIterator[Any]:
        if self._exchange is None or self._answered:
            return
        if not self._duplex:
            self._answered = True
            fields = parse(part.body, api_of(self._exchange.path)) or NO_FIELDS
            async for answer in self._exchange.place("request_body", fields, len(part.body)):
                yield answer
            return
        self._body += part.body
        self._kept += len(part.body)
        self._bodies.kept += len(part.body)
        if self._kept > MAX_BODY_BYTES or self._bodies.kept > MAX_BODIES_BYTES:
            self._answered = True
            too_large = self._kept > MAX_BODY_BYTES
            self._forget_body()
            yield messages.refuse(_TOO_LARGE if too_large else _FULL, self._exchange.path)
        elif part.end_of_stream:
            async for answer in self._whole(ends=True):
                yield answer

    async def _whole(self, *, ends: bool) -> AsyncIterator[Any]:
        """Yields the response to the head, then the complete, unchanged body. Args: ends: no trailers follow."""
        assert self._exchange is not None
        self._answered = True
        body = bytes(self._body)
        self._body.clear()
        goes_on = True
        fields = parse(body, api_of(self._exchange.path)) or NO_FIELDS
        async for answer in self._exchange.place("request_headers", fields, len(body)):
            goes_on = answer.WhichOneof("response") != "immediate_response"
            yield answer
        for begin in _begins(len(body)) if goes_on else ():
            chunk = body[begin : begin + CHUNK_BYTES]
            last = begin + CHUNK_BYTES >= len(body)
            yield ProcessingResponse(request_body=_sent_back(chunk, ends=ends and last))
        self._forget_body()

    def _forget_body(self) -> None:
        self._body.clear()
        self._bodies.kept -= self._kept
        self._kept = 0


def _begins(length: int) -> Iterator[int]:
    """Yields the offset of each part of a body; an empty body has one part, which carries the end of stream."""
    yield from range(0, max(1, length), CHUNK_BYTES)


def _sent_back(body: bytes, *, ends: bool) -> Any:
    streamed = StreamedBodyResponse(body=body, end_of_stream=ends)
    return BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed)))


_TOO_LARGE = Refusal(413, "request_too_large", f"the request's body is larger than {MAX_BODY_BYTES >> 20} MiB")
_FULL = Refusal(503, "gateway_full", "the gateway holds too many large requests", (("retry-after", "1"),))


def _allowed(message: Any) -> frozenset[str] | None:
    """Returns the addresses that another gateway allows for a request, possibly none; None: all. They come from the
    metadata: a client may send the header."""
    struct = message.metadata_context.filter_metadata.get(_SUBSET_NAMESPACE)
    if struct is None or SUBSET not in struct.fields:
        return None
    value = struct.fields[SUBSET]
    listed = [item.string_value for item in value.list_value.values]
    return addresses(",".join([value.string_value, *listed]))

"""Calls of gRPC in the terms of HTTP, which they are: a scope with path, headers and client; errors with a status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc
from fastapi import Request
from google.protobuf.message import DecodeError
from starlette.types import Message, Scope

from inflight_contract.errors import ApiError, bad_request
from inflight_contract.tenants import PROGRESS_HEADER
from inflight_engine.server.grpc.bodies import check_known
from inflight_engine.server.http.api_keys import ApiKeys
from inflight_engine.server.http.middleware import REQUEST_ID_HEADER, Edge
from inflight_engine.server.http.strict_json import LONG_BODY

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

_FULL = frozenset({"queue_full", "overloaded", "grammar_queue_full", "out_of_memory"})
"""Codes of 503 where this server works, and has no room for the request."""

_MAX_DETAILS = 1024
"""Characters of an error's sentence: clients take few KiB of trailing metadata."""

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Behaviour: TypeAlias = Callable[[bytes, Context], Awaitable[bytes | None]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A call. `http`: it, as what it is on the wire; its body is the message."""

    http: Request
    context: Context

    @property
    def late(self) -> bool:
        """The deadline of the client (`grpc-timeout`) has passed."""
        left = self.context.time_remaining()
        return left is not None and left <= _DEADLINE_SLACK

    async def write(self, message: Any) -> None:
        """Send a message of a stream, when the client takes it."""
        await self.context.write(message.SerializeToString())


_DEADLINE_SLACK = 0.02
"""Seconds between gRPC's clock of deadlines and the one it tells them by."""

Answer: TypeAlias = Callable[[Any, Asked], Awaitable[Any]]
"""Answers a message with one, or with None after a stream."""


def code_of(error: ApiError) -> grpc.StatusCode:
    """gRPC's code for an error. RESOURCE_EXHAUSTED: this server is full; UNAVAILABLE: it loads, drains or restarts."""
    if error.status == 503 and error.code in _FULL:
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    return _CODES.get(error.status, grpc.StatusCode.INTERNAL)


def probe(kind: type[Any], answer: Callable[[Any], Any]) -> Behaviour:
    """A call that machines repeat every few seconds: no line in the access log, no span, no key."""

    async def behave(message: bytes, context: Context) -> bytes:
        try:
            asked = _read(kind, message)
        except ApiError as error:
            await _abort(context, error, "")
            raise
        answered: bytes = answer(asked).SerializeToString()
        return answered

    return behave


def call(path: str, kind: type[Any], answer: Answer, edge: Edge, keys: ApiKeys, *, counted: bool) -> Behaviour:
    """A call with the frame that HTTP's requests have: id, key, access log, trace.

    Args:
        kind: of its message.
        counted: a drain waits for it.
    """

    async def behave(message: bytes, context: Context) -> bytes | None:
        scope = _scope(path, context)
        http = Request(scope, _body(message))
        with edge.exchange(scope, counted=counted) as exchange:
            context.set_trailing_metadata(((REQUEST_ID_HEADER, exchange.request_id),))
            try:
                if (refused := keys.refusal(http.headers)) is not None:
                    raise refused
                if PROGRESS_HEADER in http.headers:
                    raise bad_request(f"{PROGRESS_HEADER}: is for HTTP only", PROGRESS_HEADER)
                long = len(message) >= LONG_BODY
                asked = await asyncio.to_thread(_read, kind, message) if long else _read(kind, message)
                answered = await answer(asked, Asked(http, context))
                exchange.status = 200
                return None if answered is None else answered.SerializeToString()
            except ApiError as error:
                failed = error
            except Exception:
                log.exception("a call of %s failed", path)
                failed = ApiError(500, "this server failed on the request; its log says why", code="internal_error")
            exchange.status = failed.status
            await _abort(context, failed, exchange.request_id)
        raise AssertionError("aborted")

    return behave


def _read(kind: type[Any], message: bytes) -> Any:
    try:
        asked = kind.FromString(message)
    except DecodeError as error:
        raise bad_request(f"the message is not a {kind.DESCRIPTOR.name}: {error}") from None
    check_known(asked)
    return asked


async def _abort(context: Context, error: ApiError, request_id: str) -> None:
    """Raises grpc.aio.AbortError."""
    metadata = [(name, value) for name, value in error.all_headers().items() if name == "retry-after"]
    if request_id:
        metadata.append((REQUEST_ID_HEADER, request_id))
    # A field name out of a message is text that UTF-8 can write, other than one out of JSON.
    await context.abort(code_of(error), error.message[:_MAX_DETAILS], tuple(metadata))


def _scope(path: str, context: Context) -> Scope:
    metadata = context.invocation_metadata() or ()
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in metadata if isinstance(value, str)]
    return {
        "type": "http",
        "http_version": "2",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": headers,
        "client": _client(context.peer()),
    }


def _client(peer: str) -> tuple[str, int] | None:
    """Address and port of a peer, which gRPC writes as in `ipv4:10.0.0.7:4711` and `ipv6:%5B::1%5D:4711`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdecimal() else None


def _body(message: bytes) -> Callable[[], Awaitable[Message]]:
    async def receive() -> Message:
        return {"type": "http.request", "body": message, "more_body": False}

    return receive

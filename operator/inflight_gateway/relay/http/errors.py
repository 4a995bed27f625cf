"""Errors of the relay for clients."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from inflight_gateway.link.wire import Refuse
from inflight_gateway.relay.http.heads import Headers
from inflight_gateway.request.error_body import error_body
from inflight_gateway.request.paths import Api, api_of
from inflight_gateway.types import Refusal


@dataclass(frozen=True)
class ClientError:
    """An error for a client. Attributes: code: OpenAI's machine-readable name. body_as_is: an engine's error object,
    sent in place of the relay's own. final: clients should not try again on their own. more: further headers."""

    status: int
    message: str = ""
    code: str | None = None
    retry_after_s: int | None = None
    body_as_is: bytes = b""
    final: bool = False
    more: tuple[tuple[str, str], ...] = ()

    def body(self, path: bytes) -> bytes:
        """Returns the body of an error response. Args: path: of the request."""
        if self.body_as_is:
            return self.body_as_is
        return error_body(path.decode("latin-1"), self.status, self.code, self.message)

    def event(self, path: bytes, number: int) -> bytes:
        """Returns the error as a server-sent event, for a stream that has begun.

        Args:
            path: of the request, without its query. number: events before it.
        """
        body = self.body(path)
        api = api_of(path.decode("latin-1"))
        if api is Api.RESPONSES:
            body = msgspec.json.encode({"type": "error", "sequence_number": number, **_said(body)})
        named = b"event: error\n" if api in (Api.RESPONSES, Api.MESSAGES) else b""
        return b"%bdata: %b\n\n" % (named, body)

    @property
    def headers(self) -> Headers:
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if self.final:
            # OpenAI's client libraries retry after each 5xx otherwise.
            headers.append((b"x-should-retry", b"false"))
        return [*headers, *((name.encode(), value.encode("latin-1")) for name, value in self.more)]


FULL = ClientError(503, "the gateway holds too many large requests", "gateway_full", retry_after_s=1)


def refused(refusal: Refusal | Refuse) -> ClientError:
    """Returns the error of a request that the gateway itself refuses."""
    return ClientError(refusal.status, refusal.message, refusal.code, more=refusal.headers)


def engine_error(status: int, body: bytes) -> ClientError:
    """Returns the error that an engine reported. Args: body: its error object, as JSON."""
    retry_after = 1 if status in (429, 503) else None
    return ClientError(status, "the engine failed", "engine_failed", retry_after, body_as_is=body)


class _Error(msgspec.Struct):
    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


class _Body(msgspec.Struct):
    error: _Error


def _said(body: bytes) -> dict[str, str | None]:
    """Returns the fields of an error in OpenAI's form that an event of OpenAI Responses has."""
    try:
        said = msgspec.json.decode(body, type=_Body).error
    except ValueError:
        said = _Error("the engine failed", code="engine_failed")
    return {"code": said.code or said.type, "message": said.message, "param": said.param}


def engine_died(body: bytes) -> bool:
    """Returns whether an engine's error object says that its engine process died."""
    return b'"engine_failed"' in body

"""Errors of the relay for clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from inflight_base.http.heads import Headers
from inflight_gateway.link.wire import Refuse
from inflight_gateway.request.error_body import error_body
from inflight_gateway.request.paths import Api, api_of
from inflight_gateway.types import Refusal


@dataclass(frozen=True)
class ClientError:
    """An error for a client. Attributes: code: OpenAI's machine-readable name. body_as_is: an engine's error object,
    sent in place of the relay's own. final: clients should not try again on their own. more: further headers. param:
    the field of the request that is wrong."""

    status: int
    message: str = ""
    code: str | None = None
    retry_after_s: int | None = None
    body_as_is: bytes = b""
    final: bool = False
    more: tuple[tuple[str, str], ...] = ()
    param: str | None = None

    def body(self, path: bytes) -> bytes:
        """Returns the body of an error response. Args: path: of the request."""
        if self.body_as_is:
            return self.body_as_is
        return error_body(path.decode("latin-1"), self.status, self.code, self.message, self.param)

    def events(self, path: bytes, number: int, response: Mapping[str, object]) -> bytes:
        """Returns the error as server-sent events, for a stream that has begun.

        Args:
            path: of the request, without its query. number: events before it.
            response: for OpenAI Responses: the response as the client knows it.
        """
        body = self.body(path)
        api = api_of(path.decode("latin-1"))
        if api is Api.RESPONSES:
            said = _said(body)
            failed = {**response, "status": "failed", "error": {"code": said["code"], "message": said["message"]}}
            return _event("error", sequence_number=number, **said) + _event(
                "response.failed", sequence_number=number + 1, response=failed
            )
        if api is Api.MESSAGES:
            return b"event: error\ndata: %b\n\n" % _of_anthropic(body, path, self.status)
        return b"data: %b\n\n" % body

    @property
    def headers(self) -> Headers:
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if self.final:
            # OpenAI's client libraries retry after each 5xx otherwise.
            headers.append((b"x-should-retry", b"false"))
        return [*headers, *((name.encode(), value.encode("latin-1")) for name, value in self.more)]


UNREADABLE = ClientError(400, "the request's body cannot be read as a JSON object", "unreadable_body")
FULL = ClientError(503, "the gateway holds too many large requests", "gateway_full", retry_after_s=1)


def refused(refusal: Refusal | Refuse) -> ClientError:
    """Returns the error of a request that the gateway itself refuses."""
    param = refusal.param if isinstance(refusal, Refusal) else None
    return ClientError(refusal.status, refusal.message, refusal.code, more=refusal.headers, param=param)


def engine_error(status: int, body: bytes) -> ClientError:
    """Returns the error that an engine reported. Args: body: its error object, as JSON."""
    retry_after = 1 if status in (429, 503) else None
    return ClientError(status, "the engine failed", "engine_failed", retry_after, body_as_is=body)


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


class _Error(msgspec.Struct):
    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


class _Body(msgspec.Struct):
    error: _Error


class _Anthropic(msgspec.Struct):
    type: Literal["error"]
    error: _Error


def _of_anthropic(body: bytes, path: bytes, status: int) -> bytes:
    """Returns an error's body in Anthropic's form, which an engine of another make may not have used."""
    try:
        msgspec.json.decode(body, type=_Anthropic)
    except ValueError:
        said = _said(body)
        return error_body(path.decode("latin-1"), status, said["code"], said["message"] or "the engine failed")
    return body


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

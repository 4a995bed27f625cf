"""Errors of the relay for clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from inflight_gateway.link.wire import Refuse
from inflight_gateway.relay.http.heads import Headers
from inflight_gateway.request.openai_error import error_body
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

    @cached_property
    def body(self) -> bytes:
        if self.body_as_is:
            return self.body_as_is
        return error_body(self.status, self.code, self.message)

    @property
    def event(self) -> bytes:
        """The error as a server-sent event, for a stream that has begun."""
        return b"data: " + self.body + b"\n\n"

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


def engine_died(body: bytes) -> bool:
    """Returns whether an engine's error object says that its engine process died."""
    return b'"engine_failed"' in body

"""An attempt of a generation request: makes its head, reads its response and enforces timeouts."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Sequence
from typing import Protocol

from inflight_gateway.relay.client import Request
from inflight_gateway.relay.decide import Failure, History
from inflight_gateway.relay.frames import Frame, FrameParser, FrameTooLong
from inflight_gateway.relay.heads import Headers, find, request_head, without
from inflight_gateway.relay.inner import InnerConnection
from inflight_gateway.relay.shared import Shared
from inflight_gateway.request import headers as names
from inflight_gateway.request.body import NO_FIELDS, Body, to_header

GRACE_S = 0.1
"""Seconds between the moment when a byte is overdue and the end of the attempt: if this process itself was blocked,
the bytes that arrived meanwhile are read first."""

_ENDPOINT = names.ENDPOINT.encode()
_SERVICE = names.SERVICE.encode()
_TRIES = names.TRIES.encode()
_UPSTREAM_FAILURE = names.UPSTREAM_FAILURE.encode()
_MAX_ATTEMPTS = names.MAX_ATTEMPTS.encode()
_FIRST_TOKEN_WITHIN = names.FIRST_TOKEN_WITHIN.encode()
_ATTEMPT = names.ATTEMPT.encode()
_AVOID = names.AVOID.encode()
_BODY = names.BODY.encode()
_OWN_REQUEST_ID = names.OWN_REQUEST_ID.encode()
_PROGRESS = names.PROGRESS.encode()
_REQUEST_ID = names.REQUEST_ID.encode()

_READABLE = re.compile(rb"[!-~]{1,128}")


class Owner(Protocol):
    """Receiver of an attempt. Gets `accepted` and `frames`, or `plain`, `plain_data` and `plain_ended`; `failed` at
    most once, and then nothing more."""

    def accepted(self, headers: Headers) -> None:
        """The engine answers with progress frames."""
        ...

    def frames(self, frames: Sequence[Frame], now: float) -> None: ...

    def plain(self, status: int, headers: Headers) -> None:
        """The engine sends no progress frames, or rejected the request: a plain response."""
        ...

    def plain_data(self, data: bytes) -> None: ...

    def plain_ended(self) -> None: ...

    def failed(self, failure: Failure) -> None: ...


class Attempt:
    """An attempt. Args: blocked: the client does not read now.

    Attributes:
        endpoint: IP:PORT that responded; empty: unknown. service: NAMESPACE/NAME; empty: unknown.
        max_attempts: attempts that the service allows for one request; None: unknown.
        tries: endpoints that Envoy tried. loss: how the engine failed to send a head; None: it sent one.
    """

    def __init__(self, shared: Shared, owner: Owner, request: tuple[bytes, bytes], *, blocked: bool) -> None:
        self.endpoint = self.service = ""
        self.max_attempts: int | None = None
        self.tries = 1
        self.loss: Failure | None = None
        self._shared = shared
        self._owner = owner
        # Kept until the response begins, for a retry if an idle connection was closed.
        self._request: tuple[bytes, bytes] | None = request
        self._blocked = blocked
        self._loop = asyncio.get_running_loop()
        self._parser: FrameParser | None = None
        self._call: InnerConnection
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._first_token_by: float | None = None
        self._send()

    def _send(self) -> None:
        assert self._request is not None
        head, body = self._request
        self._call = self._shared.pool.call(self)
        self._call.write(head)
        self._call.write(body)
        self._call.sent = True

    def first_token(self) -> None:
        """Notes that the first token has arrived."""
        self._first_token_by = None

    def cancel(self) -> None:
        """Close the connection, so that the engine stops."""
        self._stop_timer()
        self._call.cancel()

    def read_rest(self) -> None:
        """Discards the rest of the response, which is complete."""
        self._stop_timer()
        self._call.read_rest()

    def client_writable(self, *, now: bool) -> None:
        self._blocked = not now
        if now:
            self._heard_at = self._loop.time()
            if self._first_token_by is not None:
                self._first_token_by = max(self._first_token_by, self._heard_at + self._shared.tuning.silence_s)
            self._call.resume()
        else:
            self._call.pause()

    # Called by the connection to the inner listener.

    def head(self, status: int, headers: Headers) -> None:
        self._request = None
        self.endpoint = _address(find(headers, _ENDPOINT))
        self.service = (find(headers, _SERVICE) or b"").decode("latin-1")
        self.max_attempts = _count(find(headers, _MAX_ATTEMPTS))
        self.tries = _count(find(headers, _TRIES)) or 1
        self.loss = _loss(find(headers, _UPSTREAM_FAILURE))
        if self._blocked:
            self._call.pause()
        if find(headers, _PROGRESS) is None or status != 200:
            self._owner.plain(status, headers)
            return
        self._parser = FrameParser()
        self._heard_at = self._loop.time()
        within = _seconds(find(headers, _FIRST_TOKEN_WITHIN))
        if within is not None:
            self._first_token_by = self._heard_at + within
        self._timer = self._loop.call_at(self._overdue_at(), self._check_overdue)
        self._owner.accepted(headers)

    def data(self, data: bytes) -> None:
        if self._parser is None:
            self._owner.plain_data(data)
            return
        self._heard_at = now = self._loop.time()
        try:
            frames = self._parser.feed(data)
        except FrameTooLong:
            self._fail(Failure.GARBLED)
            return
        if frames:
            self._owner.frames(frames, now)

    def ended(self) -> None:
        if self._parser is None:
            self._owner.plain_ended()
        else:
            self._stop_timer()
            self._owner.failed(Failure.CUT)

    def lost(self, *, stale: bool) -> None:
        if stale:
            self._send()
        else:
            self._fail(Failure.CUT)

    def inner_writable(self, *, now: bool) -> None:
        """Ignores it: the body is written at once, as it is in memory anyway."""

    # Timeouts.

    def _overdue_at(self) -> float:
        silent_at = self._heard_at + self._shared.tuning.silence_s
        return silent_at if self._first_token_by is None else min(silent_at, self._first_token_by)

    def _check_overdue(self, *, again: bool = False) -> None:
        """Fails the attempt if a byte or the first token is overdue, else sets the timer again."""
        now = self._loop.time()
        if self._blocked:  # nothing is read, so nothing is overdue
            self._timer = self._loop.call_later(self._shared.tuning.silence_s, self._check_overdue)
            return
        overdue_at = self._overdue_at()
        if now < overdue_at:
            self._timer = self._loop.call_at(overdue_at, self._check_overdue)
        elif not again:
            self._timer = self._loop.call_later(GRACE_S, lambda: self._check_overdue(again=True))
        else:
            silent = now >= self._heard_at + self._shared.tuning.silence_s
            self._fail(Failure.SILENT if silent else Failure.LATE)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, failure: Failure) -> None:
        self.cancel()
        self._owner.failed(failure)


def _address(value: bytes | None) -> str:
    """Returns the endpoint; empty where a response has no upstream, for which Envoy writes `-`."""
    return "" if value is None or value == b"-" else value.decode("latin-1")


_LOSSES = {b"UC": Failure.CUT, b"UR": Failure.CUT, b"UPE": Failure.CUT, b"UT": Failure.SILENT}


def _loss(flags: bytes | None) -> Failure | None:
    """Returns how an engine failed to send a head, by Envoy's response flags `UC,URX`; None: it sent one, or none was
    reached.

    https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage
    """
    return next((_LOSSES[flag] for flag in (flags or b"").split(b",") if flag in _LOSSES), None)


def _seconds(value: bytes | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _count(value: bytes | None) -> int | None:
    """Returns a count; None also for 0 and for invalid numbers."""
    return int(value) or None if value is not None and value.isdigit() else None


def attempt_head(request: Request, request_id: str, length: int, fields: Body | None, history: History) -> bytes:
    """Returns the head for a body of `length` bytes.

    Args:
        request_id: the gateway's own id.
        fields: fields of this body; None: an engine refuses it, and is asked for no progress frames.
        history: attempts of the request, this one included.
    """
    headers = [
        *request.headers,
        (b"content-length", b"%d" % length),
        (_OWN_REQUEST_ID, request_id.encode()),
        (_ATTEMPT, b"%d" % history.number),
        (_BODY, to_header(fields or NO_FIELDS)),
    ]
    if fields is not None:
        headers.append((_PROGRESS, b"1"))
    avoided = ",".join(history.avoid)
    if avoided:
        headers.append((_AVOID, avoided.encode("latin-1")))
    return request_head(request.method, request.target, headers)


def with_readable_id(headers: Headers) -> Headers:
    """Returns headers whose X-Request-Id, which picker and engine sign and verify, is readable: else a new one."""
    if _READABLE.fullmatch(find(headers, _REQUEST_ID) or b""):
        return headers
    return [*without(headers, _REQUEST_ID), (_REQUEST_ID, uuid.uuid4().hex.encode())]

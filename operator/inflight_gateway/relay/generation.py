"""A generation request: its attempts at the inner listener, and one response to the client.

Nothing is awaited: bytes from the engine are written to the client in the call that reads them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from inflight_gateway.relay import decide
from inflight_gateway.relay.answer import Answer, Ended, Ending
from inflight_gateway.relay.attempt import Attempt, with_readable_id
from inflight_gateway.relay.bodies import CHECKED_BYTES, Received
from inflight_gateway.relay.client import ClientConnection, Request
from inflight_gateway.relay.decide import Again, Failure, History, next_step
from inflight_gateway.relay.delivery import DONE, Delivery, json_of
from inflight_gateway.relay.errors import ClientError, engine_died, engine_error
from inflight_gateway.relay.frames import Frame
from inflight_gateway.relay.heads import Headers, end_to_end, retry_after_seconds, without, without_internal
from inflight_gateway.relay.key_check import KeyCheck
from inflight_gateway.relay.proxying import start_proxied
from inflight_gateway.relay.record import Record
from inflight_gateway.relay.shared import Shared
from inflight_gateway.request.body import Body, parse
from inflight_gateway.settings import MAX_BODY_BYTES
from inflight_gateway.types import Retried

_TOO_LARGE = ClientError(413, f"the request's body is larger than {MAX_BODY_BYTES >> 20} MiB", "request_too_large")
_FULL = ClientError(503, "the gateway holds too many large requests", "gateway_full", retry_after_s=1)
_FORGED = ClientError(400, "inflight_continuation is a field of the gateway", "unsupported_parameter")


class Generation:
    def __init__(self, shared: Shared, request: Request, client: ClientConnection) -> None:
        self._shared = shared
        self._request = request
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._received = Received(shared.bodies, request.headers)
        self._body = b""
        self._fields: Body | None = None
        self._attempt: Attempt | None = None
        self._check: KeyCheck | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._history = History()
        self._limits = shared.tuning.limits
        self._answer = Answer()
        self._proxying = self._blocked = False
        self._record = Record(request)
        self._delivery = Delivery(client, self._record)

    # Called by the connection to the client.

    def begin(self) -> None:
        length = self._request.length
        if length is not None and length > MAX_BODY_BYTES:
            self._refuse(_TOO_LARGE)
        elif length is not None and length > CHECKED_BYTES:
            self._check_key()

    def _check_key(self) -> None:
        self._received.check_begun = True
        self._client.pause()
        self._check = KeyCheck(self._shared.pool, self._request, self._record.request_id, self._checked)

    def _checked(self, refusal: tuple[Headers, bytes] | None) -> None:
        """Continues after the check of the API key. Args: refusal: None: the body may follow."""
        self._check = None
        if refusal is None:
            self._received.checked()
            self._client.resume()
            return
        headers, body = refusal
        self._record.status = 401
        self._end()
        self._client.respond(401, without(without_internal(end_to_end(headers)), b"content-length"), body)

    def body(self, data: bytes) -> None:
        received = self._received
        received.take(data)
        if received.size > MAX_BODY_BYTES:
            self._refuse(_TOO_LARGE)
        elif received.is_over:
            self._refuse(_FULL)
        elif received.needs_check:
            self._check_key()

    def body_ended(self) -> None:
        self._stop_check()
        self._body = self._received.whole()
        self._fields = parse(self._body)
        if self._fields is not None:
            if self._fields.continues:
                self._refuse(_FORGED)
                return
            self._record.stream = self._fields.stream
        self._request.headers = with_readable_id(self._request.headers)
        self._shared.budget.request()
        self._start_attempt()

    def left(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
        self._end(error="client_left")

    def client_writable(self, *, now: bool) -> None:
        self._blocked = not now
        if self._attempt is not None:
            self._attempt.client_writable(now=now)

    # Attempts.

    def _start_attempt(self) -> None:
        self._retry = None
        self._history.begin()
        body, fields = self._body, self._fields
        if self._answer.has_tokens:
            try:
                body = self._answer.continued(body, self._delivery.created or self._record.arrived_unix)
            except ValueError:
                self._refuse(decide.NOT_CONTINUED)
                return
            fields = fields and fields.continued(self._answer.num_tokens)
        head = b""
        self._answer.begin_attempt()
        self._attempt = Attempt(self._shared, self, (head, body), blocked=self._blocked)

    def accepted(self, headers: Headers) -> None:
        self._seen(continued=self._answer.has_tokens)
        self._delivery.accepted(headers)

    def _seen(self, *, continued: bool = False) -> None:
        if self._attempt is not None:
            if self._attempt.max_attempts is not None:
                self._limits = replace(self._limits, max_attempts=self._attempt.max_attempts)
            self._record.attempt(self._attempt.service, self._attempt.endpoint, continued=continued)
            if self._attempt.tries > 1:
                self._shared.retried(
                    Retried(self._record.request_id, self._history.number, self._attempt.endpoint, self._attempt.tries)
                )

    def frames(self, frames: Sequence[Frame], now: float) -> None:
        assert self._attempt is not None
        answer, delivery = self._answer, self._delivery
        before_first = not answer.advanced
        for frame in frames:
            try:
                ended = answer.take(frame.notes) if frame.notes else None
            except ValueError:
                self._garbled()
                return
            if ended is not None:
                self._ended(ended, frame.data, now)
                return
            if frame.data and self._record.stream:
                delivery.take(frame)
                if frame.data == DONE:
                    self._done(now)
                    return
        if before_first and answer.advanced:
            self._attempt.first_token()
        if answer.has_tokens:
            delivery.send(now)

    def _garbled(self) -> None:
        assert self._attempt is not None
        self._attempt.cancel()
        if self._answer.has_tokens:  # possibly from a frame that the client did not receive
            self._refuse(decide.NOT_CONTINUED)
        else:
            self.failed(Failure.GARBLED)

    def _done(self, now: float) -> None:
        """Ends the stream, which is complete."""
        assert self._attempt is not None
        self._delivery.send(now)
        self._attempt.read_rest()
        self._end()
        self._client.finish()

    def _ended(self, ended: Ended, data: bytes, now: float) -> None:
        assert self._attempt is not None
        if ended.ending is Ending.WHOLE and not self._record.stream:
            self._attempt.read_rest()
            self._record.status = ended.status
            self._end()
            self._delivery.whole(ended.status, data)
            return
        if self._answer.has_tokens:
            self._delivery.send(now)
        if ended.ending is Ending.WHOLE:
            self._garbled()
            return
        self._attempt.cancel()
        error = engine_error(ended.status, json_of(data))
        if ended.ending is Ending.RETRY:
            self.failed(Failure.DIED if engine_died(data) else Failure.ENGINE, said=error)
        else:
            self._refuse(error)

    # Responses without progress frames.

    def plain(self, status: int, headers: Headers) -> None:
        assert self._attempt is not None
        self._seen()
        if self._attempt.loss is not None:
            self._attempt.cancel()
            self.failed(self._attempt.loss)
            return
        if self._history.number == 1 or (status != 503 and not self._answer.has_tokens):
            self._proxying = True
            self._record.status = status
            start_proxied(self._client, status, headers)
            return
        self._attempt.cancel()
        if status == 503:
            self.failed(Failure.BUSY, retry_after_s=retry_after_seconds(headers))
        elif status in (200, 502, 504):
            # An engine without support for continuation.
            self.failed(Failure.GARBLED)
        else:
            self._refuse(decide.NOT_CONTINUED)

    def plain_data(self, data: bytes) -> None:
        self._client.write(data)
        self._record.wrote(self._loop.time())
        self._record.plain(data)

    def plain_ended(self) -> None:
        self._end()
        self._client.finish()

    # Failures.

    def failed(self, failure: Failure, *, retry_after_s: float | None = None, said: ClientError | None = None) -> None:
        assert self._attempt is not None
        now = self._loop.time()
        if self._proxying:
            self._end(error="engine_lost")
            self._client.abort()
            return
        if self._delivery.counts_sent and self._answer.all_finished(self._body):
            # A continuation would repeat the token counts.
            self._client.write(DONE)
            self._end()
            self._client.finish()
            return
        tried = self._history.failed(failure, self._attempt.endpoint, now, advanced=self._answer.advanced)
        self._attempt = None
        self._delivery.forget()
        if not self._answer.has_tokens:
            self._answer = Answer()
        step = next_step(failure, tried, self._limits, retry_after_s=retry_after_s, said=said)
        if isinstance(step, Again) and failure is not Failure.BUSY and not self._shared.budget.retry(now):
            step = decide.OUT_OF_BUDGET
        if isinstance(step, ClientError):
            self._refuse(step)
        else:
            # Jitter, so that requests that failed together do not retry together.
            self._retry = self._loop.call_later(step.after_s * random.uniform(0.8, 1.2), self._start_attempt)

    def _refuse(self, error: ClientError) -> None:
        if not self._delivery.started:
            self._record.status = error.status
        self._end(error=error.code or "")
        self._delivery.end_with(error)

    def _stop_check(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None
            self._client.resume()

    def _end(self, *, error: str = "") -> None:
        """Stops all work for this request."""
        self._stop_check()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._attempt = None
        self._body = b""
        self._received.release()
        self._shared.report(self._record.finished(self._answer, self._loop.time(), error))

"""A generation request: its attempts at engines, and one response to the client.

Nothing is awaited: bytes from the engine are written to the client in the call that reads them.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from inflight_base.http.heads import Headers, retry_after_seconds
from inflight_base.manifest.engines import INFLIGHT, VLLM
from inflight_gateway.link.wire import Ask, Go, Refuse
from inflight_gateway.relay import decide
from inflight_gateway.relay.answers.answer import Answer, Ended, Ending
from inflight_gateway.relay.answers.frames import DONE, ONE_TOKEN, Frame, FrameParser
from inflight_gateway.relay.answers.kept import AnswerBytes
from inflight_gateway.relay.answers.usage import PlainUsage, with_usage
from inflight_gateway.relay.answers.vllm import TEXT, VllmStream, ends_within_character, stream_of
from inflight_gateway.relay.attempt import Attempt
from inflight_gateway.relay.decide import Again, Failure, History, next_step
from inflight_gateway.relay.delivery import Delivery, TooMuchUnsent, json_of
from inflight_gateway.relay.engine_head import generation_head
from inflight_gateway.relay.http.client import Client, Request
from inflight_gateway.relay.http.errors import FULL, UNREADABLE, ClientError, engine_died, engine_error, refused
from inflight_gateway.relay.intake.admission import Admitted, Refused, too_large
from inflight_gateway.relay.intake.bodies import Received
from inflight_gateway.relay.probe import Probe
from inflight_gateway.relay.proxying import start_proxied
from inflight_gateway.relay.record import Record
from inflight_gateway.relay.shared import Shared
from inflight_gateway.request.body import NO_FIELDS, Body, parse
from inflight_gateway.request.paths import Api
from inflight_gateway.types import ServiceConfig

_FORGED = ClientError(
    400,
    "inflight_continuation is a field of the gateway",
    "unsupported_parameter",
    param="inflight_continuation",
)

_COMMENTS = re.compile(rb"(?::[^\r\n]*\n\n)+")
"""Data of an event stream that say only that the server lives."""

_NO_USAGE = b',"usage":null'
"""Written in each event of a stream with token counts, but the last."""

_FAILED = (500, 502, 504)
"""Statuses with which an engine of another make says that it failed; ours says so in a frame."""

_MOVE_AGAIN_S = 1.0
"""Seconds after which another engine is asked for again, while one that drains goes on."""

_MAX_EVENT_BYTES = 64 * 2**10
"""Most bytes of an engine's error object that are sent as an event."""


class Generation:
    """A request. It is asked for at the picker once for each attempt, see `Asks`.

    Args:
        admitted: result of the checks of its head.
    """

    def __init__(self, shared: Shared, request: Request, client: Client, admitted: Admitted) -> None:
        self._shared = shared
        self._request = request
        self._client = client
        self._admitted = admitted
        self._loop = asyncio.get_running_loop()
        self._received = Received(shared.bodies, admitted.owner)
        self._body = b""
        self._fields: Body = NO_FIELDS
        self._config: ServiceConfig
        self._asking = False
        self._limit_headers: Headers = []
        self._attempt: Attempt | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Begins the next attempt."""
        self._waiting: asyncio.TimerHandle | None = None
        """Tells the client that its stream waits."""
        self._history = History()
        self._answer = Answer()
        self._kept: AnswerBytes | None = None
        self._plain: PlainUsage | None = None
        self._plain_head: tuple[int, Headers] | None = None
        """Sent with the first byte of the body: until then, another engine may answer."""
        self._unheard_until = 0.0
        """The client gets no comments of a plain stream before this time of the loop's clock; then it needs them, as
        proxies cut silent streams."""
        self._vllm: VllmStream | None = None
        self._probe: Probe | None = None
        self._event: bytearray | None = None
        """Error of an engine that becomes an event, because the client has a head already."""
        self._blocked = self._over = False
        self._record = Record(request)
        self._api = admitted.path.api
        self._delivery = Delivery(client, self._record, request.path)

    # Called by the connection to the client.

    def begin(self) -> None:
        if self._received.is_over:
            self._refuse(FULL)

    def body(self, data: bytes) -> None:
        received = self._received
        received.take(data)
        if received.size > self._admitted.most:
            self._refuse(too_large(self._admitted.most))
        elif received.is_over:
            self._refuse(FULL)

    def body_ended(self) -> None:
        self._body = self._received.whole()
        fields = parse(self._body, self._api)
        error = UNREADABLE if fields is None else _FORGED if fields.continues else self._identify(fields.model)
        if fields is None or error is not None:
            self._refuse(error or UNREADABLE)
            return
        self._fields = fields
        self._delivery.allow(len(self._body), fields.scores)
        self._record.stream = fields.stream
        self._delivery.model = fields.model or ""
        self._answer = self._new_answer()
        self._kept = self._shared.kept.answer(self._config.key)
        self._shared.budget.request()
        self._ask()

    def _identify(self, model: str | None) -> ClientError | None:
        """Sets the service and the tenant, which the head said, or now the body. Returns the refusal, if any."""
        admitted: Admitted | Refused = self._admitted
        if self._admitted.config is None:
            admitted = self._shared.admission.check_model(self._admitted, model, self._loop.time(), time.time())
        if admitted.config is not None:
            self._config, self._record.service = admitted.config, admitted.config.key
        if isinstance(admitted, Refused):
            return admitted.error
        self._admitted = admitted
        self._record.tenant, self._record.key_id = admitted.tenant, admitted.key_id
        return None

    def left(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
        self._end(error="client_left")

    def client_writable(self, *, now: bool) -> None:
        self._blocked = not now
        self._delivery.client_writable(now=now)
        if self._attempt is not None:
            self._attempt.client_writable(now=now)

    # Attempts.

    def _ask(self, *, handed_over: bool = False) -> None:
        """Asks for an engine. Args: handed_over: that of the attempt before gives its keys and values to the next."""
        self._stop_timer()
        self._history.begin()
        fields = self._fields
        if self._answer.has_tokens:
            fields = fields.continued(self._answer.num_tokens)
        self._asking = True
        self._shared.asks.ask(
            Ask(
                self._record.request_id,
                self._history.number,
                self._config.key,
                self._admitted.tenant,
                self._admitted.key_id,
                self._record.path,
                fields,
                len(self._body),
                tuple(self._history.avoid),
                self._record.external_id,
                self._loop.time() - self._request.arrived,
                handed_over=handed_over,
            ),
            self,
        )
        self._wait_later()

    def _wait_later(self) -> None:
        if self._record.stream and self._waiting is None:
            self._waiting = self._loop.call_later(self._shared.tuning.waiting_s, self._wait)

    def held(self) -> None:
        """No engine takes the attempt now."""
        if self._attempt is not None:
            self._stay()

    def go(self, go: Go) -> None:
        """The request goes to these engines."""
        self._asking = False
        if self._attempt is not None:
            if go.endpoints[0] in self._history.avoid or not self._may_move():
                self._stay()
                return
            self._leave_draining(self._attempt)
        config, signing = self._config, self._shared.admission.engine_headers
        unsigned = signing.refusal(config)
        if unsigned is not None:  # the gateway key went since the head was checked
            self._refuse(refused(unsigned))
            return
        self._limit_headers = [(name.encode(), value.encode("latin-1")) for name, value in go.headers]
        if self._record.stream:
            self._ask_for_counts(go.endpoints[0])
        continues = self._answer.has_tokens
        self._answer.begin_attempt()
        if self._vllm is not None:
            self._vllm.block_size = go.block_size
            if continues:
                self._find_end(self._vllm, go)
            else:
                self._begin(go, self._body, reader=self._vllm.reader(self._answer))
            return
        body = self._body
        if continues:
            try:
                events = self._delivery.events if self._api is Api.RESPONSES else None
                body = self._answer.continued(body, self._delivery.created or self._record.arrived_unix, events)
            except ValueError:
                self._refuse(decide.NOT_CONTINUED)
                return
        self._begin(go, body)

    def _ask_for_counts(self, engine: str) -> None:
        """Asks for what the gateway reads of a stream of this engine. Not in the turn that parses the body: each part
        takes up to 40 ms of 32 MiB. Of later attempts, nothing changes."""
        counted = with_usage(self._body, self._request.path)
        if counted is not None:
            self._body, self._delivery.strip = counted, True
        vllm = self._shared.type_of(engine, self._config) == VLLM
        if vllm and self._history.number == 1 and self._fields.choices == 1:
            self._vllm = stream_of(self._body, self._request.path)
            self._body = self._body if self._vllm is None else self._vllm.body

    def _begin(
        self, go: Go, body: bytes, target: bytes = b"", *, reader: FrameParser | None = None, probe: Probe | None = None
    ) -> None:
        config, admission = self._config, self._shared.admission
        head = generation_head(
            *(self._request, config, self._admitted.tenant, admission.engine_headers, len(body), target),
            prefill=go.prefill,
        )
        assert self._kept is not None
        self._probe = probe
        self._attempt = Attempt(
            self._shared,
            probe or self,
            (head, body),
            go,
            self._kept,
            config,
            stream=self._record.stream,
            continues=self._answer.has_tokens,
            blocked=self._blocked and probe is None,
            reader=reader,
        )
        if probe is not None:
            probe.attempt = self._attempt

    def _find_end(self, stream: VllmStream, go: Go) -> None:
        """Continues the answer at its last whole character, up to the length that is left."""
        answer = self._answer

        def answered(take: Callable[[bytes], None], status: int, body: bytes) -> None:
            try:
                if status == 200:
                    take(body)
                elif status == 503:
                    self._failed(Failure.BUSY)
                else:
                    self._refuse(decide.NOT_CONTINUED)
            except ValueError:
                self._refuse(decide.NOT_CONTINUED)

        def take_context(body: bytes) -> None:
            stream.take_context(body)
            self._find_end(stream, go)

        def take_end(body: bytes) -> None:
            if ends_within_character(body) and answer.num_tokens:
                answer.drop_last()
                self._find_end(stream, go)
            else:
                self._begin(go, stream.continued(answer), TEXT, reader=stream.reader(answer))

        context = stream.context()
        if context is not None:
            self._begin(go, context, b"/tokenize", probe=Probe(partial(answered, take_context), self.failed))
        elif answer.token_ids:
            self._begin(go, stream.tail(answer), b"/detokenize", probe=Probe(partial(answered, take_end), self.failed))
        else:
            answered(take_end, 200, b'{"prompt":""}')

    def refused(self, refuse: Refuse) -> None:
        """No engine takes the attempt."""
        self._asking = False
        if self._attempt is not None:
            self._stay()
            return
        error = refused(refuse)
        if self._history.number > 1 and error.status == 503:
            self._failed(Failure.BUSY, retry_after_s=_retry_after(refuse.headers), said=None)
        elif self._answer.has_tokens:
            self._refuse(decide.NOT_CONTINUED)
        else:
            self._refuse(error)

    def _wait(self) -> None:
        """Tells the client that its stream waits: proxies in front cut streams that are silent for a minute."""
        self._waiting = None
        waits = self._asking and self._attempt is None
        if waits or (self._delivery.started and not self._answer.advanced):
            self._delivery.wait(self._limit_headers)
            self._waiting = self._loop.call_later(self._shared.tuning.waiting_s, self._wait)

    # Called by the attempt.

    @property
    def kept_bytes(self) -> int:
        plain = 0 if self._plain is None else self._plain.kept_bytes
        prompt = 0 if self._vllm is None else self._vllm.kept_bytes
        return self._delivery.kept_bytes + self._answer.size + plain + prompt

    @property
    def most_frame_bytes(self) -> int:
        return self._delivery.most_frame_bytes(self._answer.num_tokens)

    def accepted(self, headers: Headers, *, framed: bool) -> None:
        if framed and not self._answer.has_tokens:
            self._vllm = None
        self._answering(continued=self._answer.has_tokens)
        self._delivery.accepted([*headers, *self._limit_headers])

    def _answering(self, *, continued: bool = False) -> None:
        attempt, answer = self._attempt, self._answer
        assert attempt is not None
        self._record.attempt(attempt.endpoint, continued=continued)
        self._shared.asks.answering(
            self._record.request_id, attempt.endpoint, tuple(attempt.refused), lambda: answer.num_tokens
        )

    def token(self, data: bytes, now: float) -> bool:
        """Takes the usual frame, of one token of a stream that flows, at a third of the cost of `frames`."""
        delivery, frame = self._delivery, ONE_TOKEN.fullmatch(data)
        if frame is None or not delivery.flows:
            return False
        index, token, text = frame.groups()
        if delivery.strip:
            text = text.replace(_NO_USAGE, b"")
            if b"usage" in text:
                return False
        if not self._answer.token(index, token):
            return False
        delivery.token(text, now)
        return True

    def frames(self, frames: Sequence[Frame], now: float) -> None:
        assert self._attempt is not None
        answer, delivery = self._answer, self._delivery
        before_first = not answer.advanced
        for frame in frames:
            try:
                ended = answer.take(frame.notes) if frame.notes else None
                if frame.data and ended is None and self._record.stream:
                    delivery.take(frame)
            except TooMuchUnsent:
                self._attempt.cancel()
                self.failed(Failure.EXCESS)
                return
            except ValueError:
                self._garbled()
                return
            if answer.blocks is not None and answer.advanced:
                blocks, answer.blocks = answer.blocks, None
                self._shared.asks.told(self._record.request_id, blocks)
            if ended is not None:
                self._ended(ended, frame.data, now)
                return
            if frame.data == DONE and self._record.stream:
                self._done(now)
                return
        if before_first and answer.advanced:
            self._attempt.first_token()
        if answer.has_tokens:
            delivery.send(now)
        if answer.drains:
            answer.drains = False
            self._move()

    def _move(self) -> None:
        """Asks for another engine, as this one drains. It answers on until there is one."""
        if self._attempt is not None and not self._asking and self._may_move():
            self._shared.asks.left(self._record.request_id)
            self._history.moved(self._attempt.endpoint)
            self._ask(handed_over=self._answer.has_tokens and self._answer.source is not None)

    def _may_move(self) -> bool:
        return self._may_continue() and not self._answer.all_finished

    def _may_continue(self) -> bool:
        answer = self._answer
        return (self._config.continuation and answer.continues) or not answer.has_tokens

    def _stay(self) -> None:
        """Goes on at the engine that drains, and asks again later."""
        assert self._attempt is not None
        self._asking, answer = False, self._answer
        self._stop_timer()
        self._shared.asks.stays(self._record.request_id, self._attempt.endpoint, lambda: answer.num_tokens)
        self._timer = self._loop.call_later(_MOVE_AGAIN_S * random.uniform(0.8, 1.2), self._move)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave_draining(self, attempt: Attempt) -> None:
        """Leaves an engine for another one."""
        attempt.cancel()
        self._attempt = None
        self._forget_unsent()

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
        if not self._delivery.started:  # the end alone, which Anthropic's streams do not show
            self._garbled()
            return
        self._attempt.read_rest()
        self._end()
        self._client.finish()

    def _ended(self, ended: Ended, data: bytes, now: float) -> None:
        assert self._attempt is not None
        if ended.ending is Ending.WHOLE and not self._record.stream:
            if self._asking:  # a client may take long to read it
                self._stay()
            self._attempt.read_rest()
            self._attempt = None
            self._record.status = ended.status
            self._delivery.whole(ended.status, data, self._end)
            return
        if self._answer.has_tokens:
            self._delivery.send(now)
        if ended.ending is Ending.WHOLE:
            self._garbled()
            return
        self._attempt.cancel()
        error = engine_error(ended.status, json_of(data))
        if ended.ending is Ending.RETRY:
            self._failed(Failure.DIED if engine_died(data) else Failure.ENGINE, said=error)
        else:
            self._refuse(error)

    def long(self, begun: Frame) -> bool:
        """Begins to pass on a whole answer that is too long to be kept: from here on, no other engine can answer."""
        ended = self._answer.take(begun.notes)
        if ended is None or ended.ending is not Ending.WHOLE:
            return False
        self._record.status = ended.status
        self._plain, self._answer.advanced = PlainUsage(strip=False, room=None), True
        self._delivery.begin_whole(ended.status)
        self.plain_data(begun.data)
        return True

    # Responses without progress frames.

    def plain(self, status: int, headers: Headers) -> None:
        assert self._attempt is not None
        self._answering()
        if self._history.number > 1 and (self._answer.has_tokens or status == 503):
            self._attempt.cancel()
            if status == 400 and self._answer.forget_source():  # an engine of a release that knows none
                endpoint, within_s = self._attempt.endpoint, self._attempt.first_token_within_s
                self._attempt = None
                self.go(Go("", 0, (endpoint,), within_s))
            elif status == 503:
                self._failed(Failure.BUSY, retry_after_s=retry_after_seconds(headers))
            elif status in (200, 502, 504):
                # An engine without support for continuation.
                self.failed(Failure.GARBLED)
            else:
                self._refuse(decide.NOT_CONTINUED)
            return
        other = self._shared.type_of(self._attempt.endpoint, self._config) != INFLIGHT
        attempts_left = self._config.max_attempts - self._history.number
        if other and status in _FAILED and attempts_left > 0:
            self._attempt.cancel()
            self._failed(Failure.ENGINE)
            return
        room = self._shared.counted.answer(self._config.key)
        self._plain = PlainUsage(strip=self._delivery.strip and status == 200, room=room)
        self._unheard_until = self._loop.time() + self._shared.tuning.waiting_s
        if not self._delivery.started:
            if self._delivery.strip:
                # Its length changes.
                headers = [each for each in headers if each[0] != b"content-length"] if status == 200 else headers
            self._plain_head = (status, [*headers, *self._limit_headers])
        elif status != 200:
            self._event = bytearray()

    def plain_data(self, data: bytes) -> None:
        assert self._plain is not None
        if self._event is not None:
            self._event += data[: _MAX_EVENT_BYTES - len(self._event)]
            return
        if not self._answer.advanced and self._loop.time() < self._unheard_until and _COMMENTS.fullmatch(data):
            return  # without a byte, another engine can still answer
        self._start_plain()
        self._client.write(self._plain.take(data))
        self._record.wrote(self._loop.time())

    def plain_ended(self) -> None:
        assert self._plain is not None
        if self._event is not None:
            self._refuse(engine_error(502, bytes(self._event).replace(b"\n", b" ")))
            return
        self._start_plain()
        self._client.write(self._plain.end())
        self._end()
        self._client.finish()

    def _start_plain(self) -> None:
        self._answer.advanced = True
        if self._plain_head is not None:
            self._record.status = self._plain_head[0]
            start_proxied(self._client, *self._plain_head)
            self._plain_head = None

    # Failures.

    def failed(self, failure: Failure) -> None:
        self._failed(failure)

    def _failed(self, failure: Failure, *, retry_after_s: float | None = None, said: ClientError | None = None) -> None:
        now = self._loop.time()
        self._stop_timer()
        if self._plain is not None and self._answer.advanced:
            self._end(error="engine_lost")
            self._client.abort()
            return
        self._plain = self._plain_head = self._event = None
        if self._answer.all_finished and (self._vllm is not None or self._delivery.counts_sent):
            # A continuation would repeat the token counts, or have nothing to generate.
            if self._vllm is not None and not self._delivery.counts_sent:
                self.frames([self._vllm.counts(self._answer)], now)
            self._client.write(self._delivery.done)
            self._end()
            self._client.finish()
            return
        attempt, self._attempt = self._attempt, None
        endpoint, refused_by = ("", []) if attempt is None else (attempt.endpoint, attempt.refused)
        self._shared.asks.left(self._record.request_id)
        answer = self._answer
        tried = self._history.failed(failure, endpoint, now, advanced=answer.advanced, refused=refused_by)
        self._forget_unsent()
        step = next_step(
            failure,
            tried,
            replace(self._shared.tuning.limits, max_attempts=self._config.max_attempts),
            continues=self._may_continue(),
            retry_after_s=retry_after_s,
            said=said,
        )
        free = self._asking  # It drained, and another one is asked for already.
        if isinstance(step, Again) and step.after_s == 0 and not free and not self._shared.budget.retry(now):
            step = decide.OUT_OF_BUDGET
        if isinstance(step, ClientError):
            self._refuse(step)
        elif free:
            self._wait_later()
        else:
            # Jitter, so that requests that failed together do not retry together.
            self._timer = self._loop.call_later(step.after_s * random.uniform(0.8, 1.2), self._ask)

    def _forget_unsent(self) -> None:
        """Keeps what the next engine goes on with."""
        self._delivery.forget()
        if not self._answer.has_tokens:
            self._answer = self._new_answer()

    def _new_answer(self) -> Answer:
        return Answer(self._fields.choices, self._fields.max_tokens)

    def _refuse(self, error: ClientError) -> None:
        if not self._delivery.started:
            self._record.status = error.status
        self._end(error=error.code or "")
        self._delivery.end_with(error)

    def _end(self, *, error: str = "") -> None:
        """Stops all work for this request."""
        if self._over:
            return
        self._over = True
        for timer in (self._timer, self._waiting):
            if timer is not None:
                timer.cancel()
        self._timer = self._waiting = self._attempt = None
        if self._probe is not None:
            self._probe.stop()
        self._body = b""
        self._received.release()
        if self._kept is not None:
            self._kept.release()
        plain = None
        if self._plain is not None:
            self._plain.release()
            plain = self._plain.usage
        self._shared.asks.ended(self._record.finished(self._answer, plain, self._loop.time(), error))


def _retry_after(headers: Sequence[tuple[str, str]]) -> float | None:
    return retry_after_seconds([(name.encode(), value.encode()) for name, value in headers])

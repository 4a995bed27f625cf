"""The way of each request by its head: refused, answered here, passed to an engine, or a generation."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from inflight_gateway.relay import gateway_paths
from inflight_gateway.relay.engine_head import engine_headers
from inflight_gateway.relay.generation import Generation
from inflight_gateway.relay.http.client import Client, Exchange, Request
from inflight_gateway.relay.http.errors import FULL, UNREADABLE, ClientError, refused
from inflight_gateway.relay.intake.admission import Admitted, Refused, too_large
from inflight_gateway.relay.intake.bodies import Received
from inflight_gateway.relay.pickers.alone import none_ready
from inflight_gateway.relay.proxying import PassThrough
from inflight_gateway.relay.record import short_report
from inflight_gateway.relay.shared import Shared
from inflight_gateway.request.body import parse
from inflight_gateway.request.paths import Answers
from inflight_gateway.types import ServiceConfig


def exchange(shared: Shared, request: Request, client: Client) -> Exchange:
    """Returns the receiver of a request's body and of its client's events."""
    now = asyncio.get_running_loop().time()
    admitted = shared.admission.check(request, now, time.time())
    if isinstance(admitted, Refused):
        if admitted.counted:
            error = admitted.error
            shared.asks.refused(short_report(request, admitted.config, error.status, now, error.code or ""))
        return _Answered(client, admitted.error)
    if admitted.path.answers is Answers.GENERATION:
        return Generation(shared, request, client, admitted)
    if admitted.path.answers is Answers.ENGINE:
        return _Passed(shared, request, client, admitted)
    path = request.path.decode("latin-1")
    return _Answered(client, gateway_paths.answer(path, admitted, shared.catalog.model_services()))


class _Answered:
    """A request that the relay answers by its head."""

    def __init__(self, client: Client, answer: bytes | ClientError) -> None:
        self._client = client
        self._answer = answer

    def begin(self) -> None:
        if isinstance(self._answer, ClientError):
            self._client.refuse(self._answer)
        else:
            self._client.respond(200, [(b"content-type", b"application/json")], self._answer)

    def body(self, data: bytes) -> None:
        """Ignores it: there is a response."""

    def body_ended(self) -> None: ...

    def left(self) -> None: ...

    def client_writable(self, *, now: bool) -> None: ...


class _Passed:
    """A request that generates nothing, at the ready engine with the fewest requests. It is never held, and the picker
    learns of it by its report only. Its body is kept until it is whole where the model in it names the service."""

    def __init__(self, shared: Shared, request: Request, client: Client, admitted: Admitted) -> None:
        self._shared = shared
        self._request = request
        self._client = client
        self._admitted = admitted
        self._received = Received(shared.bodies, admitted.owner)
        self._address = ""
        self._over = False
        self._passing: PassThrough | None = None
        self._report = short_report(request, admitted.config, 0, request.arrived)

    def begin(self) -> None:
        if self._received.is_over:
            self._refuse(FULL)
        elif self._admitted.config is not None:
            self._pass(self._admitted.config)

    def _pass(self, config: ServiceConfig) -> None:
        addresses = self._shared.alone.least(config.key, self._report.request_id)
        if not addresses:
            self._refuse(refused(none_ready(config.key)))
            return
        self._address = addresses[0]
        signing = self._shared.admission.engine_headers
        self._request.headers = engine_headers(self._request, config, self._admitted.tenant, signing)
        pool, head_s = self._shared.pool, self._shared.tuning.head_s
        self._passing = PassThrough(pool, self._address, self._request, self._client, self._ended, head_s)
        self._passing.begin()

    def body(self, data: bytes) -> None:
        received = self._received
        if self._passing is None:
            received.take(data)
        else:
            received.count(len(data))
        if received.size > self._admitted.most or received.is_over:
            error = FULL if received.size <= self._admitted.most else too_large(self._admitted.most)
            passing, self._passing = self._passing, None
            if passing is not None and passing.begun:
                passing.left()
                self._client.abort()
            else:
                self._refuse(error)
                if passing is not None:
                    passing.left()
        elif self._passing is not None:
            self._passing.body(data)

    def body_ended(self) -> None:
        if self._passing is None:
            self._named(self._received.whole())
        if self._passing is not None:
            self._passing.body_ended()

    def _named(self, body: bytes) -> None:
        """Passes on a request whose body names its service by the model."""
        fields = parse(body, self._admitted.path.api)
        if fields is None:
            self._refuse(UNREADABLE)
            return
        now = asyncio.get_running_loop().time()
        admitted = self._shared.admission.check_model(self._admitted, fields.model, now, time.time())
        if admitted.config is not None:
            self._report = replace(self._report, service=admitted.config.key)
        if isinstance(admitted, Refused):
            self._refuse(admitted.error)
            return
        assert admitted.config is not None
        self._admitted, self._request.length = admitted, len(body)
        self._pass(admitted.config)
        if self._passing is not None:
            self._passing.body(body)

    def left(self) -> None:
        if self._passing is not None:
            self._passing.left()
        else:
            self._ended(0)

    def client_writable(self, *, now: bool) -> None:
        if self._passing is not None:
            self._passing.client_writable(now=now)

    def _refuse(self, error: ClientError) -> None:
        self._ended(error.status, error.code or "")
        self._client.refuse(error)

    def _ended(self, status: int, error: str = "") -> None:
        if self._over:
            return
        self._over = True
        self._received.release()
        self._shared.asks.ended(
            replace(
                self._report,
                status=status,
                e2e_s=asyncio.get_running_loop().time() - self._request.arrived,
                endpoints=(self._address,) if self._address else (),
                error=error or ("" if status else "client_left"),
                tenant=self._admitted.tenant,
                key_id=self._admitted.key_id,
            )
        )

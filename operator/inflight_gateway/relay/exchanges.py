"""The way of each request by its head: refused, answered here, passed to an engine, or a generation."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from inflight_gateway.relay import gateway_paths
from inflight_gateway.relay.engine_head import engine_headers
from inflight_gateway.relay.generation import Generation
from inflight_gateway.relay.http.client import ClientConnection, Exchange, Request
from inflight_gateway.relay.http.errors import FULL, ClientError, refused
from inflight_gateway.relay.intake.admission import Admitted, Refused, too_large
from inflight_gateway.relay.intake.bodies import Received
from inflight_gateway.relay.pickers.alone import none_ready
from inflight_gateway.relay.proxying import PassThrough
from inflight_gateway.relay.record import short_report
from inflight_gateway.relay.shared import Shared
from inflight_gateway.request.paths import Answers
from inflight_gateway.types import ServiceConfig


def exchange(shared: Shared, request: Request, client: ClientConnection) -> Exchange:
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
    if admitted.config is not None and admitted.path.answers is Answers.ENGINE:
        return _Passed(shared, request, client, admitted, admitted.config)
    path = request.path.decode("latin-1")
    return _Answered(client, gateway_paths.answer(path, admitted, shared.catalog.model_services()))


class _Answered:
    """A request that the relay answers by its head."""

    def __init__(self, client: ClientConnection, answer: bytes | ClientError) -> None:
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
    learns of it by its report only."""

    def __init__(
        self, shared: Shared, request: Request, client: ClientConnection, admitted: Admitted, config: ServiceConfig
    ) -> None:
        self._shared = shared
        self._request = request
        self._client = client
        self._admitted = admitted
        self._config = config
        self._received = Received(shared.bodies, admitted.owner)
        self._address = ""
        self._over = False
        self._passing: PassThrough | None = None
        self._report = short_report(request, config, 0, request.arrived)

    def begin(self) -> None:
        addresses = self._shared.alone.least(self._config.key, self._report.request_id)
        if self._received.is_over:
            self._refuse(FULL)
        elif not addresses:
            self._refuse(refused(none_ready(self._config.key)))
        else:
            self._address = addresses[0]
            signing = self._shared.admission.engine_headers
            self._request.headers = engine_headers(self._request, self._config, self._admitted.tenant, signing)
            pool, head_s = self._shared.pool, self._shared.tuning.head_s
            self._passing = PassThrough(pool, self._address, self._request, self._client, self._ended, head_s)
            self._passing.begin()

    def body(self, data: bytes) -> None:
        self._received.count(len(data))
        if self._passing is None:
            return
        if self._received.size > self._admitted.most or self._received.is_over:
            error = FULL if self._received.size <= self._admitted.most else too_large(self._admitted.most)
            passing, self._passing = self._passing, None
            if passing.begun:
                passing.left()
                self._client.abort()
            else:
                self._refuse(error)
                passing.left()
        else:
            self._passing.body(data)

    def body_ended(self) -> None:
        if self._passing is not None:
            self._passing.body_ended()

    def left(self) -> None:
        if self._passing is not None:
            self._passing.left()

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

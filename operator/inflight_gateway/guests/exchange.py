"""A request of another gateway, from its head to the end of its response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.guests import messages
from inflight_gateway.guests.head import NOT_FROM_CLIENTS, Head
from inflight_gateway.link.ready_pods import ReadyPods
from inflight_gateway.link.wire import Ask, Go, Held, Refuse
from inflight_gateway.request.body import Body
from inflight_gateway.request.headers import DESTINATION, REQUEST_ID
from inflight_gateway.request.paths import Answers, path_of
from inflight_gateway.requests.registry import Requests, none_allowed
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.keys import ApiKey
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.types import Finished, Refusal, ServiceConfig

PICKED_METADATA = "envoy.lb"
"""Metadata in which other gateways expect the pick, besides the header (Gateway API Inference Extension,
docs/proposals/004-endpoint-picker-protocol)."""

_HOLD_MARGIN_S = 5.0
"""The other gateway waits longer than the hold queue: the picker ends a hold, not its timeout."""


@dataclass(slots=True, eq=False)
class Parts:
    """Dependencies of requests. Attributes: engine_headers: replaced when the gateway key changes. pods: each decides
    on its own calls, with its share of the limits."""

    catalog: Catalog
    gate: Gate
    engine_headers: EngineHeaders
    requests: Requests
    log: RequestLog
    pods: ReadyPods


class Exchange:
    """A request. Its methods are called in the order of Envoy's messages; `close` always comes last.

    Args:
        allowed: addresses that the other gateway allows for it; None: all.
        pool: service whose InferencePool the other gateway routes the request to; None: unknown.

    Attributes: path: without its query.
    """

    def __init__(self, parts: Parts, head: Head, allowed: Collection[str] | None, pool: ServiceKey | None) -> None:
        self._parts = parts
        self._head = head
        self._allowed = allowed
        self._pool = pool
        self.path = head.path.partition("?")[0]
        self._service = ServiceKey("", "")
        self._key = ApiKey("", "", None)
        self._asked = False
        self._refusal: Refusal | None = None
        self._endpoints: tuple[str, ...] = ()
        self._status: int | None = None

    def refusal(self) -> Any | None:
        """Returns the refusal that follows from the head alone, or None: bodies are read only if needed."""
        if path_of(self.path) is None:
            return self._refuse(Refusal(404, "not_found", f"the gateway serves no path {self.path}"))
        config = self._config(None)
        refusal = self._admit(config) if isinstance(config, ServiceConfig) else None
        return None if refusal is None else self._refuse(refusal)

    async def place(self, stage: messages.Stage, body: Body, body_bytes: int) -> AsyncIterator[Any]:
        """Yields the response, preceded by a longer timeout if the request has to wait."""
        config = self._config(body.model)
        refusal = config if isinstance(config, Refusal) else self._admit(config)
        if isinstance(config, Refusal) or refusal is not None:
            assert refusal is not None
            yield self._refuse(refusal)
            return
        if self._allowed is not None and not self._allowed:
            yield self._refuse(none_allowed(config.key))
            return
        path = path_of(self.path)
        if path is None or path.answers is not Answers.GENERATION:
            found = self._parts.requests.least_requests(config, self._allowed)
            yield self._refuse(found) if isinstance(found, Refusal) else self._go(stage, config, found)
            return
        answers: asyncio.Queue[Held | Go | Refuse] = asyncio.Queue()
        head, key = self._head, self._key
        ask = Ask(
            id=head.request_id,
            attempt=1,
            service=config.key,
            tenant=key.tenant,
            key_id=key.key_id,
            path=self.path,
            body=body,
            body_bytes=body_bytes,
            external_id=head.external_id,
        )
        self._asked = True
        among = len(self._parts.pods.pods)
        self._parts.requests.ask(ask, self, answers.put_nowait, self._allowed or (), among)
        del ask, body
        while True:
            answer = await answers.get()
            if isinstance(answer, Held):
                yield messages.wait_longer(config.hold.max_wait_s + _HOLD_MARGIN_S)
            elif isinstance(answer, Go):
                yield self._go(stage, config, answer.endpoints)
                return
            else:
                yield messages.refuse(Refusal(answer.status, answer.code, answer.message, answer.headers), self.path)
                return

    def answered(self, status: int) -> None:
        """Applies the head of an engine's response. Args: status: its HTTP status."""
        self._status = status
        if self._asked:
            self._parts.requests.status(self._head.request_id, status)

    def close(self) -> None:
        """Ends the request: its response has ended, or the client disconnected."""
        if self._asked:
            self._parts.requests.end(self._head.request_id)
            return
        refusal = self._refusal
        if refusal is None and not self._endpoints:
            return
        report = Finished(
            self._head.request_id,
            self._service,
            self._status if refusal is None else refusal.status,
            stream=False,
            endpoints=self._endpoints,
            external_id=self._head.external_id,
            tenant=self._key.tenant,
            key_id=self._key.key_id,
            path=self.path,
        )
        self._parts.log.ended(report, 0.0, "" if refusal is None else refusal.code)

    def _admit(self, config: ServiceConfig) -> Refusal | None:
        self._service = config.key
        key = self._parts.gate.check(self._head.headers, config)
        if isinstance(key, Refusal):
            return key
        self._key = key
        return self._parts.engine_headers.refusal(config)

    def _config(self, model: str | None) -> ServiceConfig | Refusal:
        catalog = self._parts.catalog
        if self._pool is not None and self._pool in catalog.services:
            # The route of the other gateway has chosen it; Host and model are those of its clients.
            return catalog.services[self._pool]
        key = catalog.resolve(self._head.host, model, tuple(self._allowed or ()))
        return key if isinstance(key, Refusal) else catalog.services[key]

    def _refuse(self, refusal: Refusal) -> Any:
        self._refusal = refusal
        self._parts.log.refused(self._service if self._service.name else None, refusal)
        return messages.refuse(refusal, self.path)

    def _go(self, stage: messages.Stage, config: ServiceConfig, endpoints: tuple[str, ...]) -> Any:
        self._endpoints = endpoints[:1]
        destination, headers, head = ",".join(endpoints), self._parts.engine_headers, self._head
        signed = headers.to_set(config, self._key.tenant, head.external_id)
        to_set = [(DESTINATION, destination), *signed]
        if signed and head.headers.get(REQUEST_ID) != head.external_id:
            to_set.append((REQUEST_ID, head.external_id))
        present = {name for name, _ in to_set}
        forged = [name for name in sorted(NOT_FROM_CLIENTS) if name not in present]
        metadata = {PICKED_METADATA: {DESTINATION: destination}}
        return messages.go_on(stage, to_set, (*forged, *headers.to_remove(config)), metadata)

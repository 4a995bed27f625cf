"""The path of a request through the picker, from its head to the end of its response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.guests import messages
from inflight_gateway.guests.dispatcher import Dispatcher, Start, none_allowed
from inflight_gateway.proxy.names import METADATA
from inflight_gateway.proxy.routes import RETRY_ON_LOSS
from inflight_gateway.request.body import Body
from inflight_gateway.request.headers import CHECK_KEY, DESTINATION, INTERNAL, PROGRESS, SUBSET
from inflight_gateway.request.paths import is_hidden
from inflight_gateway.request.view import Head, view
from inflight_gateway.telemetry.access_records import AccessRecord, AccessRecords
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.types import Endpoint, Refusal, RequestView, Retried, ServiceConfig

HEAD_WITHIN_S = 10.0
"""An engine that answers with progress frames sends its head as soon as the request is tokenized and queued; without
one in this time Envoy tries the next endpoint. Other answers may take as long as the generation."""

PICKED_METADATA = "envoy.lb"
"""Metadata in which other gateways expect the pick, besides the header (Gateway API Inference Extension,
docs/proposals/004-endpoint-picker-protocol)."""

_HOLD_MARGIN_S = 5.0
"""Envoy waits longer than the hold queue: the picker ends a hold, not Envoy's timeout."""

_CHECKED = Refusal(200, "key_checked", "the body may follow")
"""Answer to a relay that checks a key; no client gets it."""

_numbers = count(1)


@dataclass(slots=True, eq=False)
class Parts:
    """Dependencies of requests.

    Attributes:
        engine_headers: replaced when the gateway key changes.
        clock: seconds, monotonic.
        refused: called with the address of an endpoint that refused a request.
        sent: requests at endpoints, each by its id, in their newest attempt.
    """

    catalog: Catalog
    gate: Gate
    engine_headers: EngineHeaders
    dispatcher: Dispatcher
    records: AccessRecords
    clock: Callable[[], float]
    refused: Callable[[str], None]
    sent: dict[str, Exchange] = field(default_factory=dict)

    def retried(self, report: Retried) -> None:
        """Envoy tried several endpoints for an attempt. Ignored once the next attempt has begun."""
        exchange = self.sent.get(report.request_id)
        if exchange is not None and exchange.attempt == report.attempt:
            exchange.retried(report)


class Exchange:
    """A request in the picker. Its methods are called in the order of Envoy's messages; `close` always comes last.

    Args:
        head: head of the request.
        allowed: addresses that another gateway allows for it; None: all.
        other_gateway: the call comes from another gateway, not from the Envoy of this pod.
        pool: service whose InferencePool the other gateway routes the request to; None: unknown.
    """

    def __init__(
        self,
        parts: Parts,
        head: Head,
        allowed: Collection[str] | None,
        *,
        other_gateway: bool = False,
        pool: ServiceKey | None = None,
    ) -> None:
        self._parts = parts
        self._head = head
        self._allowed = allowed
        self._other_gateway = other_gateway
        self._pool = pool
        self._arrived = parts.clock()
        self._placed: tuple[str, ServiceKey] | None = None
        self._admitted = False
        self._record: AccessRecord | None = None
        self._picked: tuple[Endpoint, ...] = ()

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1."""
        return self._head.attempt

    def refusal(self) -> Any | None:
        """Returns the refusal that follows from the head alone, or None: bodies are read only if needed. If a request
        has no body, `place` follows, and checks the key."""
        if self._head.checks_key:
            return self._check_key()
        if is_hidden(self._head.path):
            return self._refuse(Refusal(404, "not_found", f"the gateway serves no path {self._head.path}"), None)
        config = None if self._head.body is not None else self._config(None)
        if isinstance(config, ServiceConfig):
            tenant = self._parts.gate.check(self._head.headers, config)
            if isinstance(tenant, Refusal):
                return self._refuse(tenant, config.key)
        return None

    async def place(self, stage: messages.Stage, body: Body, body_bytes: int) -> AsyncIterator[Any]:
        """Yields the response, preceded by a longer timeout if the request has to wait."""
        parts, begin = self._parts, self._parts.clock()
        config = self._config(body.model)
        if isinstance(config, Refusal):
            yield self._refuse(config, None)
            return
        tenant = parts.gate.check(self._head.headers, config)
        if isinstance(tenant, Refusal):
            yield self._refuse(tenant, config.key)
            return
        request = view(self._head, body, body_bytes, config, tenant, self._arrived)
        if self._allowed is not None and not self._allowed:
            yield self._refuse(none_allowed(config.key), config.key)
            return
        limit_headers = await parts.gate.admit(request, config, begin)
        if isinstance(limit_headers, Refusal):
            yield self._refuse(limit_headers, config.key)
            return
        self._admitted = True
        # A relay retries before its last attempt has ended.
        unique = f"{request.request_id}#{next(_numbers)}"
        self._placed = unique, config.key
        outcome = parts.dispatcher.place(
            replace(request, request_id=unique, prefix=body.prefix(tenant)), config, self._allowed or ()
        )
        # The dispatcher has what it needs of it.
        self._head.body = None
        del body
        parts.records.decided(parts.clock() - begin)
        if isinstance(outcome, asyncio.Future) and not outcome.done():
            yield messages.wait_longer(config.hold.max_wait_s + _HOLD_MARGIN_S)
        result = outcome if isinstance(outcome, Refusal) else await outcome
        if isinstance(result, Refusal):
            yield self._refuse(result, config.key)
            return
        self._record = parts.records.started(request, *result, relayed=self._head.relayed)
        self._picked = result.pick.endpoints
        parts.sent[self._head.request_id] = self
        yield self._go_on(stage, request, config, result, limit_headers)

    def retried(self, report: Retried) -> None:
        """Applies a relay's report: the endpoints before the one that answered refused the request."""
        for endpoint in self._picked[: report.tries - 1]:
            self._parts.refused(endpoint.address)
        if self._placed is not None and report.endpoint:
            self._parts.dispatcher.moved(*self._placed, report.endpoint)

    def answered(self, status: int) -> None:
        """Applies the head of an engine's response. Args: status: its HTTP status."""
        if self._record is not None and not self._head.relayed:
            self._parts.records.answered(self._record, status)

    def close(self) -> None:
        """Ends the request: its response has ended, or the client disconnected."""
        if self._parts.sent.get(self._head.request_id) is self:
            del self._parts.sent[self._head.request_id]
        if self._placed is not None:
            self._parts.dispatcher.end(*self._placed)
        if self._admitted:
            self._parts.gate.ended(self._head.request_id)
        if self._record is not None:
            self._parts.records.ended(self._record)

    def _check_key(self) -> Any:
        """Checks the API key for a relay that has not read the body yet. Only a 401 is a refusal here; the request
        itself follows and meets all others. If Host names no service, the key must be valid for one of them, which the
        model will name."""
        config = self._config(None)
        services = self._parts.catalog.services.values() if isinstance(config, Refusal) else (config,)
        refusal = self._parts.gate.check_before_body(self._head.headers, services)
        if refusal is None:
            return messages.refuse(_CHECKED, None)
        marked = replace(refusal, headers=(*refusal.headers, (CHECK_KEY, "1")))
        return self._refuse(marked, None if isinstance(config, Refusal) else config.key)

    def _config(self, model: str | None) -> ServiceConfig | Refusal:
        catalog = self._parts.catalog
        if self._pool is not None and self._pool in catalog.services:
            # The route of the other gateway has chosen it; Host and model are those of its clients.
            return catalog.services[self._pool]
        key = catalog.resolve(self._head.host, model, tuple(self._allowed or ()))
        return key if isinstance(key, Refusal) else catalog.services[key]

    def _refuse(self, refusal: Refusal, service: ServiceKey | None) -> Any:
        self._record = self._parts.records.refused(self._head, service, refusal)
        return messages.refuse(refusal, service)

    def _go_on(
        self,
        stage: messages.Stage,
        request: RequestView,
        config: ServiceConfig,
        start: Start,
        limit_headers: messages.Pairs,
    ) -> Any:
        pick, headers = start.pick, self._parts.engine_headers
        # Each earlier attempt of the relay used up one replica.
        endpoints = pick.endpoints[: max(1, config.max_attempts - request.attempt + 1)]
        destination = ",".join(endpoint.address for endpoint in endpoints)
        to_set = [(DESTINATION, destination), *headers.to_set(config, request.tenant, request.external_id)]
        if self._other_gateway:
            present = {name for name, _ in to_set}
            # A client may have sent them: no proxy before the picker removes them.
            forged = [name for name in (*INTERNAL, SUBSET) if name not in present]
            return messages.go_on(
                stage, to_set, (*forged, *headers.to_remove(config)), {PICKED_METADATA: {DESTINATION: destination}}
            )
        to_set.append(("x-envoy-max-retries", str(len(endpoints) - 1)))
        if not self._head.relayed:
            to_set.append(("x-envoy-retry-on", RETRY_ON_LOSS))
        to_remove = list(headers.to_remove(config))
        if not config.continuation:
            # A plain response then: the relay forwards it unchanged.
            to_remove.append(PROGRESS)
        elif self._head.progress:
            to_set.append(("x-envoy-upstream-rq-per-try-timeout-ms", str(round(HEAD_WITHIN_S * 1000))))
        metadata = {
            "service": str(config.key),
            "first_token_within": f"{pick.first_token_within_s:.3f}",
            "max_attempts": str(config.max_attempts),
            **dict(limit_headers),
        }
        return messages.go_on(stage, to_set, to_remove, {METADATA: metadata})

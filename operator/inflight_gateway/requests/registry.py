"""The registry of requests: from relays and other gateways to the hold queues, the ledger and the tenants' accounts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

from inflight_base.manifest.engines import VLLM
from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.link.wire import Ask, Go, Held, Refuse, Running
from inflight_gateway.pick.picker import Picker
from inflight_gateway.requests.record import Phase, Reply, Request
from inflight_gateway.requests.settling import Settling
from inflight_gateway.requests.starter import Starter
from inflight_gateway.requests.view import view
from inflight_gateway.state.demand import DemandCounters
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.types import (
    APPROXIMATE,
    EXACT,
    Finished,
    Pick,
    PromptBlocks,
    Refusal,
    RequestView,
    ServiceConfig,
    no_replica,
    service_deleted,
)

RETURNS_S = 5.0
"""Seconds in which a relay whose stream broke connects again, if it lives. Without it, its requests are counted then; a
relay that lives reports each of them once, here or to another picker."""

FIRST_TOKEN = 1
"""Output tokens that a tenant's counter is charged at the start of a request, see `HoldQueue.release`."""


class Requests:
    """All requests, by id. A request ends by its report, by the end of its relay's stream, by `end`, or by a move to
    another picker; messages about attempts that are over are ignored.

    All pass the hold queue, even if a replica is free, so no request overtakes waiting ones except by
    `ServiceQueue.overtaking`.

    Args:
        clock: seconds, monotonic.
        changed: called when the load of a service has changed.
        refused: called with the address of a replica that refused a request.
    """

    def __init__(
        self,
        catalog: Catalog,
        picker: Picker,
        holds: HoldQueue,
        ledger: Ledger,
        gate: Gate,
        log: RequestLog,
        demand: DemandCounters,
        *,
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._catalog = catalog
        self._holds = holds
        self._ledger = ledger
        self._gate = gate
        self._log = log
        self._demand = demand
        self._clock = clock
        self._changed = changed
        self._refused = refused
        self._starter = Starter(catalog, picker, ledger)
        self._settling = Settling()
        self._requests: dict[str, Request] = {}
        self._of_service: dict[ServiceKey, dict[str, Request]] = {}
        self._relays: dict[Hashable, str] = {}
        """Names of relays, by stream."""
        self._lost: dict[str, _Lost] = {}
        """Requests of broken streams, over and not counted yet, the first one first."""

    def __len__(self) -> int:
        return len(self._requests)

    # What relays say.

    def hello(self, name: str, relay: Hashable) -> None:
        """Notes the relay of a stream. Args: name: the same for all streams of the relay."""
        self._relays[relay] = name

    def running(self, running: Running, relay: Hashable, reply: Reply) -> None:
        """Adopts an attempt that a replica answers already."""
        ask, now = running.ask, self._clock()
        config = self._catalog.services.get(ask.service)
        if config is None:
            return
        self._settling.came(ask, now, runs=True)
        request = self._begin(ask, config, relay, reply, (), now)
        if request.admitted is None:
            request.admitted = self._gate.adopt(request.view, running.tokens)
            request.tokens = request.served = running.tokens
        else:
            self._gate.resume(request.admitted)
        self._starter.shares.arrived(request.view, config, now)
        self._runs(request, running.address, now)
        self._changed()

    def ask(self, ask: Ask, relay: Hashable, reply: Reply, allowed: Collection[str] = (), among: int = 1) -> None:
        """Places an attempt; `reply` is called at once, and again if it has to wait.

        Args:
            relay: stream that the request belongs to, see `lost`.
            allowed: addresses that another gateway allows; empty: all.
            among: see `Gate.admit`.
        """
        now = self._clock()
        known = self._requests.get(ask.id)
        if known is not None and known.relay == relay and ask.attempt <= known.attempt:
            return
        config = self._catalog.services.get(ask.service)
        if config is None:
            reply(Refuse.of(ask.id, ask.attempt, service_deleted(ask.service)))
            return
        self._ledger.touch(ask.service, now)
        self._settling.came(ask, now)
        request = self._begin(ask, config, relay, reply, allowed, now)
        if allowed and not self._starter.allowed(ask.service, allowed):
            self._refuse(request, none_allowed(ask.service))
            return
        # An answer under way does not wait behind requests without one, nor is it refused.
        admitted = ask.admitted or ask.handed_over
        arrives = not admitted and request.admitted is None and request.attempt == 1
        refusal = self._admit(request, config, now, always=admitted, among=among)
        if ask.handed_over and self._start_now(request, config, now):
            return
        if refusal is None:
            since = request.since
            refusal = self._holds.offer(request.view, config, now, since=since, admitted=admitted)
            if refusal is None:
                self._starter.shares.arrived(request.view, config, now)
                self._after(request, changed=False)
            else:
                self._demand.refused(request.view)
            if arrives and not request.elsewhere:
                self._demand.arrived(request.view, request.expected_output)
        if refusal is not None:
            self._refuse(request, refusal)
        elif request.phase is Phase.HELD:
            reply(Held(ask.id, ask.attempt))
        self._log.decided(self._clock() - now)

    def _start_now(self, request: Request, config: ServiceConfig, now: float) -> bool:
        """Starts an attempt past the queue, if a replica can start it now; returns whether it did."""
        if request.view.service in self._settling:
            return False
        pick = self._starter.start(request.view, request.allowed, now)
        if pick is not None:
            self._starter.shares.arrived(request.view, config, now)
            self._go(request, pick, now)
            self._after(request)
        return pick is not None

    def answering(self, request_id: str, attempt: int, address: str, refused: Sequence[str] = ()) -> None:
        """Notes that a replica answers an attempt. Args: refused: addresses that were tried before and refused it."""
        for one in refused:
            self._refused(one)
        request = self._attempt(request_id, attempt)
        if request is None or request.phase is Phase.AWAITING:
            return
        now, moved = self._clock(), True
        if request.phase is not Phase.HELD:
            if request.phase is Phase.SENT:
                request.move(Phase.ANSWERING)
            moved = self._starter.moved(request_id, address, now)
        else:
            self._holds.remove(request.id)
            self._demand.sent(request.view, request.expected_output)
            self._runs(request, address, now)
        self._after(request, changed=moved)

    def told(self, request_id: str, attempt: int, blocks: PromptBlocks) -> None:
        """Notes the blocks of a prompt that a replica has computed. What later attempts compute is not the prompt
        alone."""
        request = self._attempt(request_id, attempt)
        if request is not None and attempt == 1:
            self._ledger.told(request_id, blocks, self._clock())

    def progress(self, tokens: Sequence[tuple[str, int]]) -> None:
        """Charges output tokens. Args: tokens: totals over all attempts, by request."""
        for request_id, total in tokens:
            request = self._requests.get(request_id)
            if request is None or request.admitted is None:
                continue
            request.tokens = total
            if request.served is None:
                request.served = total
                request.admitted.free_tokens += total
            self._serve(request, total)
            self._gate.progressed(request.admitted, total)

    def left(self, request_id: str, attempt: int) -> None:
        """Ends an attempt; the request asks again or ends."""
        request = self._attempt(request_id, attempt)
        if request is not None and request.phase is not Phase.AWAITING:
            self._leave(request)
            self._after(request)

    def ended(self, report: Finished) -> None:
        """Ends a request by its report, also one that is not known."""
        request, ran = self._requests.get(report.request_id), False
        if request is not None:
            ran = request.phase is not Phase.AWAITING
            self._over(request)
        elif report.request_id in self._lost:
            request = self._lost.pop(report.request_id).request
        else:
            if report.service in self._catalog.services:
                self._gate.count(report)
            self._log.ended(report, None, "")
            return
        if request.admitted is not None:
            self._serve(request, report.completion_tokens)
            self._gate.settle(request.view, request.admitted, report)
        elif report.endpoints:
            self._gate.count(report)
        self._log.ended(report, request.held_s, request.refusal, request.index)
        self._after(request, changed=ran)

    def released(self, service: ServiceKey, relay: Hashable) -> None:
        """Ends the requests of a service that a relay asks another picker for."""
        self._settling.went(service, self._clock())
        moved = [one for one in self._of_service.get(service, {}).values() if one.relay == relay]
        for request in moved:
            self._leaves(request)
        if moved:
            self._after(moved[0])

    def moved(self, request_id: str) -> None:
        """Ends a request that its relay asks another picker for; an unknown one is ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._settling.went(request.view.service, self._clock())
            self._leaves(request)
            self._after(request)

    def _leaves(self, request: Request) -> None:
        """Ends a request that another picker has from now on: one that never started is charged there alone."""
        waits = request.phase is Phase.HELD and request.attempt == 1
        self._over(request)
        if waits and request.admitted is not None:
            self._gate.refund(request.admitted)

    def lost(self, relay: Hashable) -> None:
        """Ends all requests of a stream that broke. Unless its relay comes back within `RETURNS_S`, their estimates
        stand for limits, and usage is what the relay said last."""
        lost = [one for one in self._requests.values() if one.relay == relay]
        for request in lost:  # all of them, before others may start
            self._lose(request)
        for service in {one.view.service for one in lost}:
            self.release(service)
        self._changed()
        self._relays.pop(relay, None)

    def _lose(self, request: Request) -> None:
        self._over(request)
        self._lost[request.id] = _Lost(request, self._relays.get(request.relay, ""), self._clock() + RETURNS_S)

    def end(self, request_id: str) -> None:
        """Ends a request that nothing reports; an unknown one is ignored."""
        request = self._requests.get(request_id)
        if request is None:
            return
        self._over(request)
        self._unreported(request)
        self._after(request)

    def _unreported(self, request: Request) -> None:
        """Counts a request that has ended and that nothing reports."""
        admitted, tokens = request.admitted, request.tokens
        finished = Finished(
            request.id,
            request.view.service,
            request.status,
            stream=False,
            # An engine has computed the prompt.
            prompt_tokens=admitted.prompt_tokens if admitted is not None and tokens else 0,
            completion_tokens=tokens,
            endpoints=tuple(request.picked),
            external_id=request.view.external_id,
            tenant=request.view.tenant,
            key_id=request.key_id,
            path=request.view.path,
        )
        if admitted is not None:
            self._gate.unreported(admitted, finished)
        self._log.ended(finished, request.held_s, request.refusal, request.index)

    def status(self, request_id: str, status: int) -> None:
        """Notes the status of a replica's response to a request that nothing reports."""
        request = self._requests.get(request_id)
        if request is not None:
            request.status = status

    def least_requests(self, config: ServiceConfig, allowed: Collection[str] | None) -> tuple[str, ...] | Refusal:
        """Returns replicas for a request that generates nothing, the one with the fewest requests first. Such requests
        are never held, and wake no replica. Args: allowed: addresses that another gateway allows; None: all."""
        pick = self._starter.least_requests(config, allowed)
        if pick is None:
            return no_replica(f"no replica of {config.key} takes requests now; only generations wait for one")
        return tuple(endpoint.address for endpoint in pick.endpoints)

    # What changes without them.

    def release(self, service: ServiceKey | None = None, *, changed: bool = True) -> None:
        """Starts all requests that can start now.

        Args:
            service: only its requests; None: the requests of all services.
            changed: False if only time has passed or a request arrived, see `HoldQueue.release`.
        """
        if not len(self._holds):
            return
        now = self._clock()

        def start(waiting: RequestView) -> Pick | None:
            if waiting.service in self._settling:
                return None
            kept_free = self._holds.kept_free(waiting.request_id, now)
            return self._starter.start(waiting, self._requests[waiting.request_id].allowed, now, kept_free)

        for waiting, pick in self._holds.release(*(now, start, service, self._starter.shares.above), changed=changed):
            self._go(self._requests[waiting.request_id], pick, now)

    def expire(self) -> None:
        """Rejects requests that reached their maximum wait, and counts those of relays that are gone."""
        now = self._clock()
        for service in self._settling.settled(now):
            self.release(service)
        while self._lost and (lost := next(iter(self._lost.values()))).until <= now:
            del self._lost[lost.request.id]
            if lost.relay not in self._relays.values():
                self._unreported(lost.request)
        for waiting in self._holds.expire(now):
            self._demand.refused(waiting)
            config = self._catalog.services.get(waiting.service)
            waited = "" if config is None else f" for {config.hold.max_wait_s:g} s (hold.maxWait)"
            self._refuse(
                self._requests[waiting.request_id],
                no_replica(f"no replica of {waiting.service} could start the request{waited}; try again"),
            )

    def catalog_changed(self, change: Change) -> None:
        """Rejects held requests of deleted services, and starts held requests that new endpoints can serve."""
        deleted = change.services - self._catalog.services.keys()
        for key in change.services | change.endpoints:
            for request in tuple(self._of_service.get(key, {}).values()):
                if request.phase is not Phase.HELD:
                    continue
                if key in deleted:
                    self._refuse(request, service_deleted(key))
                elif request.allowed and not self._starter.allowed(key, request.allowed):
                    self._refuse(request, none_allowed(key))
        for key in change.services:
            self._ledger.reconfigured(key)
        for key in deleted:
            self._settling.forget(key)
            self._starter.shares.forget(key)
            self._holds.forget(key)
            self._demand.forget(key)
        for key in change.services | change.endpoints:
            self.release(key)

    # The way of an attempt.

    def _begin(
        self, ask: Ask, config: ServiceConfig, relay: Hashable, reply: Reply, allowed: Collection[str], now: float
    ) -> Request:
        """Returns the record of the request, with the new attempt."""
        request = self._requests.get(ask.id)
        if request is not None and request.relay != relay:
            # A relay's earlier stream, whose end is not known yet.
            self._lose(request)
            request = None
        if request is None:
            attempt = view(ask, config, now)
            request = self._requests[ask.id] = Request(relay, reply, attempt, ask.key_id, allowed)
            self._of_service.setdefault(ask.service, {})[ask.id] = request
            request.expected_output = self._demand.expected_output(attempt)
            if ask.id in self._lost:
                request.go_on_from(self._lost.pop(ask.id).request)
        else:
            if request.phase is not Phase.AWAITING:
                self._leave(request)
            request.view = view(ask, config, now)
        request.since, request.refusal, request.status = now - ask.waited_s, "", None
        request.move(Phase.HELD)
        return request

    def _admit(
        self, request: Request, config: ServiceConfig, now: float, *, always: bool, among: int
    ) -> Refusal | None:
        """Charges a request to its tenant, unless that was done. Args: always, among: see `Gate.admit`."""
        if request.admitted is not None:
            self._gate.resume(request.admitted)
        elif request.attempt > 1:
            request.served = None
            request.admitted = self._gate.adopt(request.view)
        else:
            admitted = self._gate.admit(request.view, config, now, always=always, among=among)
            if isinstance(admitted, Refusal):
                return admitted
            request.admitted = admitted
        return None

    def _go(self, request: Request, pick: Pick, now: float) -> None:
        request.move(Phase.SENT)
        if request.attempt == 1:
            request.served = FIRST_TOKEN
        held_s = now - request.since
        request.held_s += held_s
        request.picked.append(pick.endpoints[0].address)
        exact = self._ledger.exact(request.view.service, pick.endpoints[0].address)
        request.index = EXACT if exact else APPROXIMATE
        self._log.picked(request.view, pick, held_s, request.index)
        at_prefill = pick.endpoints[0].prefill
        request.elsewhere = at_prefill and not pick.prefill
        if not at_prefill:  # a request that is handed over counts at the engine that answers
            self._demand.sent(request.view, request.expected_output)
        config = self._catalog.services[request.view.service]
        assert request.admitted is not None
        request.reply(
            Go(
                request.id,
                request.attempt,
                # Each earlier attempt used up one replica.
                tuple(one.address for one in pick.endpoints[: max(1, config.max_attempts - request.attempt + 1)]),
                pick.first_token_within_s,
                request.admitted.headers,
                self._ledger.block_size(config.key, pick.endpoints[0].address) if config.engine.name == VLLM else 0,
                pick.prefill,
            )
        )

    def _runs(self, request: Request, address: str, now: float) -> None:
        """Counts an attempt that its relay started."""
        request.move(Phase.ANSWERING)
        request.picked.append(address)
        self._starter.started_alone(request.view, address, now)

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        self._leave(request)
        request.refusal, request.status = refusal.code, refusal.status
        self._log.refused(request.view.service, refusal)
        request.reply(Refuse.of(request.id, request.attempt, refusal))
        self._changed()

    def _leave(self, request: Request) -> None:
        """Ends the attempt."""
        self._holds.remove(request.id)
        self._starter.ended(request.id, self._clock())
        if request.admitted is not None:
            self._gate.pause(request.admitted)
        request.move(Phase.AWAITING)

    def _over(self, request: Request) -> None:
        if request.phase is not Phase.AWAITING:
            self._leave(request)
        request.move(Phase.OVER)
        del self._requests[request.id]
        of_service = self._of_service[request.view.service]
        del of_service[request.id]
        if not of_service:
            del self._of_service[request.view.service]

    def _after(self, request: Request, *, changed: bool = True) -> None:
        """Starts requests of the same service that can start since this one has changed. Args: changed: see
        `release`."""
        self.release(request.view.service, changed=changed)
        self._changed()

    def _attempt(self, request_id: str, attempt: int) -> Request | None:
        request = self._requests.get(request_id)
        return request if request is not None and request.attempt == attempt else None

    def _serve(self, request: Request, total: int) -> None:
        """Charges output tokens to the counter of the tenant that orders waiting requests."""
        served = request.served or 0
        if total > served:
            request.served = total
            self._holds.served(request.view, total - served)


class _Lost(NamedTuple):
    """A request of a broken stream. Attributes: relay: its name; empty: unknown. until: when it is counted."""

    request: Request
    relay: str
    until: float


def none_allowed(service: ServiceKey) -> Refusal:
    """Returns the refusal of a request for which another gateway allows endpoints that cannot take it."""
    return no_replica(
        f"none of the endpoints that the gateway in front allows is a replica of {service} that takes requests"
    )

"""The parts of the picker and their connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from time import monotonic

import aiohttp
from aiohttp import web

from inflight_base.manifest.keys import ServiceKey
from inflight_base.page.scraper import metrics_session
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.discovery.models import ModelClaims
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.ext_proc.dispatcher import Dispatcher
from inflight_gateway.ext_proc.endpoint_picker_ports import EndpointPickerPorts
from inflight_gateway.ext_proc.exchange import Parts
from inflight_gateway.ext_proc.server import Processor
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.pick.picker import Picker
from inflight_gateway.proxy.publisher import Publisher
from inflight_gateway.proxy.snapshot import Fixed
from inflight_gateway.scrape.samples import Samples
from inflight_gateway.scrape.scraper import INTERVAL_SECONDS, EndpointScraper
from inflight_gateway.settings import PickerSettings, any_address
from inflight_gateway.state.load import GatewayLoads, SentLoad
from inflight_gateway.state.peers import Peers
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.state.port import StatePort
from inflight_gateway.state.stream import LoadStream
from inflight_gateway.telemetry.access_records import AccessRecords
from inflight_gateway.telemetry.metrics import DiscoveryCollector, Metrics
from inflight_gateway.tenants import wire
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.gateway_key import GatewayKey
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.tenants.routes import PeerClient, limits_handler
from inflight_gateway.tenants.sharing import SharedLimits
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.timers import Timers
from inflight_gateway.types import Endpoint, Retried

KEY_SECONDS = 5.0
"""Seconds between two reads of the gateway key's file."""

REFUSAL_S = 1.0
"""Seconds for which other endpoints are preferred to one that refused a request: by then the next scrape says whether
its engine is gone or full."""


class Gateway:
    """All parts of the picker but its sockets. `open` makes one.

    Attributes:
        records: receives the relays' reports.
        processor: serves Envoy. endpoint_picker: serves other gateways; None: not served.
        publisher: configures Envoy.
    """

    def __init__(self, settings: PickerSettings, http: aiohttp.ClientSession) -> None:
        self.catalog = Catalog(_hosts(settings))
        ModelClaims(self.catalog, settings.model_namespaces)
        self.metrics = Metrics(lambda key: key in self.catalog.services)
        self._samples = Samples()
        self._refusals: Timers[str] = Timers(REFUSAL_S)
        """Addresses of endpoints that refused a request within the last second."""
        self._scraper = EndpointScraper(self._samples, http)
        self._holds = HoldQueue()
        estimates = Estimates()
        self._ledger = Ledger(self._willing, self._samples.get, estimates)
        self._picks = PicksLog()
        self._key = GatewayKey(settings.gateway_key_file)
        self._key_read = monotonic()
        self._peer_client = PeerClient(self._key)
        self._peers = Peers(http, self._heard_from, self._key)
        self.limits = SharedLimits(settings.name, self._trusted_peers, self._peer_client.post)
        self._gate = Gate(KeyTables(self.catalog), self.limits, estimates)
        self.metrics.registry.register(self._gate.usage)
        loads = GatewayLoads(self.catalog, self._holds, self._ledger, monotonic)
        self.metrics.watch_loads(loads.service_loads)
        self._stream = LoadStream(settings.name, loads)
        self.records = AccessRecords(
            self.metrics, self._picks, self._gate, self._holds, monotonic, log=settings.access_log
        )
        self._dispatcher = Dispatcher(
            self.catalog, Picker(), self._holds, self._ledger, monotonic, self._stream.changed
        )
        headers = EngineHeaders(self._key.current, self._key.previous)
        self._parts = Parts(self.catalog, self._gate, headers, self._dispatcher, self.records, monotonic, self._refused)
        self.processor = Processor(self._parts)
        port = settings.ext_proc_port
        self.endpoint_picker = (
            None if port is None else EndpointPickerPorts(self._parts, port, tls=settings.ext_proc_tls)
        )
        fixed = Fixed(settings.sockets, any_address(), settings.port, settings.relays)
        self.publisher = Publisher(fixed, self.catalog, self.metrics.config_refused, self._endpoints_taken)
        self._addresses: dict[ServiceKey, frozenset[str]] = {}
        self._usable: dict[ServiceKey, Sequence[Endpoint]] = {}
        """Results of `_reachable` since endpoints or their reachability last changed."""
        self.catalog.subscribe(self._changed)
        self._samples.subscribe(self._sampled)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: PickerSettings) -> AsyncIterator[Gateway]:
        async with metrics_session(INTERVAL_SECONDS) as http:
            gateway = cls(settings, http)
            try:
                yield gateway
            finally:
                gateway._scraper.close()
                gateway._peers.close()
                await gateway._peer_client.close()

    def state_port(self, unready: Callable[[], Sequence[str]], problems: Callable[[], Sequence[str]]) -> StatePort:
        """Makes the HTTP port. Args: unready: see `StatePort`. problems: failing calls to the Kubernetes API."""
        self.metrics.registry.register(DiscoveryCollector(self.catalog, self._samples, self._peers, problems))
        limits = web.post(wire.PATH, limits_handler(self.limits, self._key))
        return StatePort(self._stream, self._picks, self.metrics.page, unready, self._key, [limits])

    async def run(self) -> None:
        """Reports requests in flight to the gateways that own their tenants, until cancelled."""
        await self.limits.run()

    def keep_peers(self, addresses: Collection[str]) -> None:
        self._peers.keep(addresses)

    def tick(self) -> None:
        """Applies what depends on the time alone: expiries and the reread key. Called several times a second."""
        self._refusals.expire(monotonic())
        self._dispatcher.expire()
        if len(self._holds):
            self._dispatcher.release()
        self.records.expire()
        if monotonic() - self._key_read >= KEY_SECONDS:
            self._read_key()

    def _read_key(self) -> None:
        """Reads the gateway key again: the operator creates it when it starts, possibly after the gateway."""
        self._key_read = monotonic()
        if self._key.refresh():
            self._parts.engine_headers = EngineHeaders(self._key.current, self._key.previous)

    def _changed(self, change: Change) -> None:
        self.publisher.catalog_changed(change)
        self._usable.clear()
        self._scraper.keep(self.catalog.addresses())
        for key in change.endpoints:
            now = frozenset(endpoint.address for endpoint in self.catalog.endpoints_of(key))
            for gone in self._addresses.get(key, frozenset()) - now:
                self._ledger.forget(key, gone)
            self._addresses[key] = now
        for key in change.services - self.catalog.services.keys():
            self._picks.forget(key)
            self.metrics.forget(key)
            self._gate.usage.forget(key)
        self._dispatcher.catalog_changed(change)
        self._stream.changed()

    def _endpoints_taken(self) -> None:
        self._usable.clear()
        self._dispatcher.release()

    def _sampled(self, address: str) -> None:
        service = self.catalog.service_of(address)
        if service is not None:
            self._usable.pop(service, None)
            self._dispatcher.release(service)

    def _reachable(self, key: ServiceKey) -> Sequence[Endpoint]:
        """Returns the endpoints that Envoy has accepted, without unreachable ones unless all are unreachable."""
        known = self._usable.get(key)
        if known is None:
            endpoints = [one for one in self.catalog.endpoints_of(key) if self.publisher.knows(one.address)]
            known = [one for one in endpoints if self._samples.reachable(one.address)] or endpoints
            self._usable[key] = known
        return known

    def _willing(self, key: ServiceKey) -> Sequence[Endpoint]:
        """Returns the reachable endpoints, without those that refused a request within `REFUSAL_S` unless all did."""
        endpoints = self._reachable(key)
        if not self._refusals:
            return endpoints
        now = monotonic()
        return [one for one in endpoints if not self._refusals.runs(one.address, now)] or endpoints

    def _refused(self, address: str) -> None:
        self._refusals.begin(address, monotonic())

    def retried(self, report: Retried) -> None:
        """A relay reports that Envoy tried several endpoints."""
        self._parts.retried(report)

    def _trusted_peers(self) -> Mapping[str, str]:
        """Returns live peers; none without a key: without trusted messages each gateway enforces limits alone."""
        return self._peers.live() if self._key.current is not None else {}

    def _heard_from(self, gateway: str, sent: Mapping[str, SentLoad]) -> None:
        self._ledger.peer(gateway, sent, monotonic())


def _hosts(settings: PickerSettings) -> Hosts:
    namespace, _, name = settings.service.partition("/")
    own = ServiceKey(namespace, name) if name else None
    return Hosts(settings.cluster_domain.strip(".").lower(), own, bool(settings.model_namespaces))

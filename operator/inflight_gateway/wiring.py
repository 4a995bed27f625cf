"""The parts of the picker and their connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.discovery.models import ModelClaims
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.link.ready_pods import ReadyPods
from inflight_gateway.link.server import RelayLinks
from inflight_gateway.link.wire import Keys
from inflight_gateway.pick.load import STALE_S
from inflight_gateway.pick.picker import Picker
from inflight_gateway.requests.registry import Requests
from inflight_gateway.scrape.samples import Samples
from inflight_gateway.scrape.scraper import EndpointScraper
from inflight_gateway.settings import PickerSettings
from inflight_gateway.state.demand import DemandCounters
from inflight_gateway.state.load import GatewayLoads
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.state.port import StatePort
from inflight_gateway.state.stream import LoadStream
from inflight_gateway.telemetry.metrics import DiscoveryCollector, IndexCollector, Metrics
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.gateway_key import GatewayKey
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.tenants.usage_log import UsageLog
from inflight_gateway.types import Endpoint, GatewayPod

if TYPE_CHECKING:
    from inflight_gateway.engines.event_streams import EventStreams
    from inflight_gateway.guests.endpoint_picker_ports import EndpointPickerPorts
    from inflight_gateway.guests.exchange import Parts

AGAIN_SECONDS = 1.0
"""Seconds between two reads of the gateway key's file, and between two looks at the sizes and owners of services."""


class Gateway:
    """All parts of the picker but its sockets. `open` makes one.

    Attributes:
        links: serves the relays. pods: ready gateway pods. guests: serves other gateways; None: not served.
    """

    def __init__(self, settings: PickerSettings) -> None:
        self.catalog = Catalog(_hosts(settings))
        ModelClaims(self.catalog, settings.model_namespaces)
        self.metrics = Metrics(lambda key: key in self.catalog.services)
        self._samples = Samples()
        self._scraper = EndpointScraper(self._samples, stale_after=STALE_S)
        self._holds = HoldQueue()
        estimates = Estimates()
        self._ledger = Ledger(self._reachable, self._samples.get, estimates)
        self._events: EventStreams | None = None
        self._picks = PicksLog()
        self._key = GatewayKey(settings.gateway_key_file)
        self._again_at = 0.0
        self.pods = ReadyPods(settings.name, self.catalog)
        gate = Gate(KeyTables(self.catalog), estimates)
        self._usage = gate.usage
        self.metrics.registry.register(gate.usage)
        if settings.usage_dir is not None:
            gate.usage_log = UsageLog(settings.usage_dir, gate.usage, self._model)
            self.metrics.registry.register(gate.usage_log)
        self._usage_log = gate.usage_log
        demand = DemandCounters(estimates.answer_tokens)
        loads = GatewayLoads(self.catalog, self._holds, self._ledger, demand, monotonic)
        self.metrics.watch_loads(loads.service_loads)
        self._stream = LoadStream(settings.name, loads)
        log = RequestLog(self.metrics, self._picks, access_log=settings.access_log)
        self._requests = Requests(
            *(self.catalog, Picker(self._ledger.ranking), self._holds, self._ledger, gate, log, demand),
            clock=monotonic,
            changed=self._stream.changed,
            refused=self._refused,
        )
        self.links = RelayLinks(self._requests, self.catalog, self.pods)
        self.links.set_keys(Keys(self._key.current, self._key.previous))
        self._guest_parts: Parts | None = None
        self.guests: EndpointPickerPorts | None = None
        if settings.ext_proc_port is not None:
            # Only a gateway that serves other gateways needs gRPC, which takes 40 MiB.
            from inflight_gateway.guests.endpoint_picker_ports import EndpointPickerPorts
            from inflight_gateway.guests.exchange import Parts

            headers = EngineHeaders(self._key.current, self._key.previous)
            self._guest_parts = Parts(self.catalog, gate, headers, self._requests, log, self.pods)
            self.guests = EndpointPickerPorts(self._guest_parts, settings.ext_proc_port, tls=settings.ext_proc_tls)
        self._addresses: dict[ServiceKey, frozenset[str]] = {}
        self._usable: dict[ServiceKey, Sequence[Endpoint]] = {}
        """Results of `_reachable` since endpoints or their reachability last changed: the ledger sees changes by their
        identity."""
        self.catalog.subscribe(self._changed)
        self._samples.subscribe(self._sampled)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: PickerSettings) -> AsyncIterator[Gateway]:
        gateway = cls(settings)
        if gateway._usage_log is not None:
            await gateway._usage_log.start()
        try:
            yield gateway
        finally:
            if gateway._usage_log is not None:
                await gateway._usage_log.close()
            gateway._scraper.close()
            if gateway._events is not None:
                gateway._events.close()

    def state_port(self, unready: Callable[[], Sequence[str]], problems: Callable[[], Sequence[str]]) -> StatePort:
        """Makes the HTTP port. Args: unready: see `StatePort`. problems: failing calls to the Kubernetes API."""
        self.metrics.registry.register(DiscoveryCollector(self.catalog, self._samples, self.pods, self.links, problems))
        self.metrics.registry.register(IndexCollector(lambda: {} if self._events is None else self._events.states()))
        return StatePort(self._stream, self._picks, self.metrics.page, unready, self._key, self.pods.owner)

    def set_pods(self, ready: Collection[GatewayPod]) -> None:
        """Sets the ready gateway pods."""
        self.pods.set(ready)
        self.links.tell_pods()

    def drain(self) -> None:
        """Leaves the services to other gateway pods."""
        self.pods.drain()
        self.links.tell_pods()

    def tick(self) -> None:
        """Applies what depends on the time alone: expiries, the reread key, sizes of services. Called several times a
        second."""
        self._requests.expire()
        self._requests.release(changed=False)
        now = monotonic()
        if now >= self._again_at:
            self._again_at = now + AGAIN_SECONDS
            self.pods.refresh()
            self._read_keys()
            self._read_events()

    def _read_keys(self) -> None:
        """Reads the gateway keys again: the operator creates them when it starts, possibly after the gateway."""
        if self._key.refresh():
            self.links.set_keys(Keys(self._key.current, self._key.previous))
            if self._guest_parts is not None:
                self._guest_parts.engine_headers = EngineHeaders(self._key.current, self._key.previous)

    def _read_events(self) -> None:
        """Reads the KV cache events of the engines of services that this picker owns."""
        own = {key: one.kv_events for key, one in self.catalog.services.items() if one.kv_events is not None}
        if self._events is None:
            if not own:
                return
            # Only a gateway with such services needs ZeroMQ.
            from inflight_gateway.engines.event_streams import EventStreams

            self._events = EventStreams(self._ledger.publishes, monotonic)
        self._events.keep(
            {
                endpoint.address: (key, ports)
                for key, ports in own.items()
                if self.pods.owner(key) == self.pods.own
                for endpoint in self.catalog.endpoints_of(key)
            }
        )

    def _changed(self, change: Change) -> None:
        for key in change.services | change.endpoints:
            self._usable.pop(key, None)
        self._scraper.keep(self.catalog.by_endpoint())
        for key in change.endpoints:
            now = frozenset(endpoint.address for endpoint in self.catalog.endpoints_of(key))
            for gone in self._addresses.get(key, frozenset()) - now:
                self._ledger.forget(key, gone)
            self._addresses[key] = now
        for key in change.services - self.catalog.services.keys():
            self._picks.forget(key)
            self.metrics.forget(key)
        if self.catalog.complete:
            # Also of services that were deleted before this picker started.
            for key in self._usage.services - self.catalog.services.keys():
                self._usage.forget(key)
        self._requests.catalog_changed(change)
        self._stream.changed()

    def _model(self, key: ServiceKey) -> str:
        config = self.catalog.services.get(key)
        return "" if config is None else config.model

    def _sampled(self, address: str, moved: bool) -> None:
        """Applies a sample. Args: moved: the engine can be reached now and could not, or the reverse."""
        service = self.catalog.service_of(address)
        if service is not None:
            if moved:
                self._usable.pop(service, None)
            self._ledger.sampled(address, monotonic())
            self._requests.release(service)

    def _reachable(self, key: ServiceKey) -> Sequence[Endpoint]:
        """Returns the endpoints, without unreachable ones unless all are unreachable."""
        known = self._usable.get(key)
        if known is None:
            endpoints = self.catalog.endpoints_of(key)
            known = [one for one in endpoints if self._samples.reachable(one.address)] or endpoints
            self._usable[key] = known
        return known

    def _refused(self, address: str) -> None:
        self._ledger.refused(address, monotonic())


def _hosts(settings: PickerSettings) -> Hosts:
    namespace, _, name = settings.service.partition("/")
    own = ServiceKey(namespace, name) if name else None
    return Hosts(settings.cluster_domain.strip(".").lower(), own, bool(settings.model_namespaces))

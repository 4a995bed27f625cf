"""A registry with all its parts, without sockets, and the messages that it sends."""

from __future__ import annotations

import asyncio

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.link.wire import Ask, Go, Held, Refuse
from inflight_gateway.pick.picker import Picker
from inflight_gateway.request.body import Body
from inflight_gateway.requests.registry import Requests
from inflight_gateway.state.demand import DemandCounters
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.tenants.sharing import SharedLimits
from inflight_gateway.types import Endpoint, Finished, HoldBounds, ServiceConfig

KEY = ServiceKey("default", "a")
CONFIG = ServiceConfig(KEY, "uid", "m", max_num_seqs=2, hold=HoldBounds(max_requests=5, max_wait_s=10.0))


class Limits(SharedLimits):
    """Limits that this gateway decides alone, or another one. Attributes: elsewhere: another one does. asked: futures
    of the verdicts that it has not given yet."""

    def __init__(self, clock):
        super().__init__("gw-0", lambda: {}, None, clock)
        self.elsewhere = False
        self.asked = []

    def admit_here(self, key, limits, tokens, now):
        return None if self.elsewhere else super().admit_here(key, limits, tokens, now)

    async def admit(self, key, limits, tokens, now):
        future = asyncio.get_running_loop().create_future()
        self.asked.append(future)
        await future
        return super().admit_here(key, limits, tokens, now)


class World:
    """Attributes: now: seconds. said: messages to relays. refused: addresses that refused a request."""

    def __init__(self, config=CONFIG, endpoints=0):
        self.now = 100.0
        self.config = config
        self.catalog = Catalog()
        self.catalog.update(services={config.key: config})
        self.holds = HoldQueue()
        estimates = Estimates()
        self.ledger = Ledger(self.catalog.endpoints_of, lambda _: None, estimates)
        self.limits = Limits(lambda: self.now)
        self.gate = Gate(KeyTables(self.catalog), self.limits, estimates)
        self.metrics = Metrics()
        self.metrics.registry.register(self.gate.usage)
        self.said: list[Held | Go | Refuse] = []
        self.refused: list[str] = []
        self.demand = DemandCounters(estimates.answer_tokens)
        self.requests = Requests(
            *(self.catalog, Picker(), self.holds, self.ledger, self.gate),
            RequestLog(self.metrics, PicksLog(), access_log=True),
            self.demand,
            clock=lambda: self.now,
            refused=self.refused.append,
        )
        self.catalog.subscribe(self.requests.catalog_changed)
        self.endpoints(endpoints)

    def endpoints(self, count):
        self.catalog.update(endpoints={self.config.key: [Endpoint(f"10.0.0.{one}:80", "p") for one in range(count)]})

    def ask(self, name, attempt=1, *, relay="r0", tenant="", allowed=(), **body):
        """The messages that answer an attempt at once."""
        before = len(self.said)
        ask = Ask(name, attempt, self.config.key, tenant=tenant, path="/v1/completions", body=Body(**body))
        self.requests.ask(ask, relay, self.said.append, allowed)
        return self.said[before:]

    def heard(self, name):
        """The messages about a request."""
        return [one for one in self.said if one.id == name]

    def end(self, name, status=200, endpoints=("10.0.0.0:80",), **fields):
        self.requests.ended(Finished(name, self.config.key, status, True, endpoints=endpoints, **fields))

    def in_flight(self):
        """Requests at replicas, by address."""
        return {address: count for address in self.ledger.addresses() if (count := self.ledger.in_flight(address))}

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(
            f"inflight_gateway_{name}", {"namespace": "default", "service": "a", **labels}
        )

    def assert_empty(self):
        """Nothing of any request is left anywhere."""
        starter = self.requests._starter
        assert len(self.requests) == len(self.holds) == 0
        assert self.in_flight() == {}
        assert self.ledger.service(self.config.key, self.now)[0] == 0
        assert starter.shares._started == {}
        assert all(
            one.in_flight == one.size == 0
            for each in starter.shares._services.values()
            for one in each.tenants.values()
        )
        assert self.limits._accounts.keys_in_flight() == []
        assert all(one.in_flight == 0 for each in self.gate.usage._services.values() for one in each.values())

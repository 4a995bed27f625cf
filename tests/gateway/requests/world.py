"""A registry with all its parts, without sockets, and the messages that it sends."""

from __future__ import annotations

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.link.wire import Ask, Go, Held, Refuse, Running
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
from inflight_gateway.types import Endpoint, Finished, HoldBounds, ServiceConfig

KEY = ServiceKey("default", "a")
CONFIG = ServiceConfig(KEY, "uid", "m", max_num_seqs=2, hold=HoldBounds(max_requests=5, max_wait_s=10.0))


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
        self.gate = Gate(KeyTables(self.catalog), estimates, clock=lambda: self.now)
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
        """Sets the engines; where prompts are computed apart, every second one is of the prefill set."""
        apart = self.config.apart != "Off"
        every = [Endpoint(f"10.0.0.{one}:80", "p", prefill=apart and one % 2 == 1) for one in range(count)]
        self.catalog.update(endpoints={self.config.key: every})

    def ask(
        self,
        name,
        attempt=1,
        *,
        relay="r0",
        tenant="",
        allowed=(),
        waited_s=0.0,
        admitted=False,
        handed_over=False,
        **body,
    ):
        """The messages that answer an attempt at once."""
        before = len(self.said)
        about = {"path": "/v1/completions", "waited_s": waited_s, "admitted": admitted, "handed_over": handed_over}
        ask = Ask(name, attempt, self.config.key, tenant=tenant, body=Body(**body), **about)
        self.requests.ask(ask, relay, self.said.append, allowed)
        return self.said[before:]

    def runs(self, name, attempt=1, *, relay="r0", tenant="", tokens=0, address="10.0.0.0:80", **body):
        """An engine answers an attempt that another picker was asked for."""
        ask = Ask(name, attempt, self.config.key, tenant=tenant, path="/v1/completions", body=Body(**body))
        self.requests.running(Running(ask, address, tokens), relay, self.said.append)

    def heard(self, name):
        """The messages about a request."""
        return [one for one in self.said if one.id == name]

    def end(self, name, status=200, endpoints=("10.0.0.0:80",), **fields):
        self.requests.ended(Finished(name, self.config.key, status, True, endpoints=endpoints, **fields))

    def in_flight(self):
        """Requests at replicas, by address."""
        accounts = self.ledger._accounts
        return {address: account.in_flight for address, account in accounts.items() if account.in_flight}

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(
            f"inflight_gateway_{name}", {"namespace": "default", "service": "a", **labels}
        )

    def assert_empty(self):
        """Nothing of any request is left anywhere."""
        starter = self.requests._starter
        assert len(self.requests) == len(self.holds) == len(self.requests._of_service) == 0
        assert self.in_flight() == {}
        assert self.ledger.service(self.config.key, self.now)[0] == 0
        assert starter.shares._started == {}
        assert all(
            one.in_flight == one.size == 0
            for each in starter.shares._services.values()
            for one in each.tenants.values()
        )
        assert not any(one.in_flight for one in self.gate._accounts.values())
        assert all(one.in_flight == 0 for each in self.gate.usage._services.values() for one in each.values())

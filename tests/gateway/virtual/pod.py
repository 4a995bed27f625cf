"""A gateway pod in virtual time: a picker with all its parts, and a relay's link to the pickers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.link.ready_pods import ReadyPods
from inflight_gateway.link.server import RelayLinks
from inflight_gateway.link.wire import Ask, Go, Refuse
from inflight_gateway.pick.picker import Picker
from inflight_gateway.relay.alone import Alone
from inflight_gateway.relay.pickers import Pickers
from inflight_gateway.requests.registry import Requests
from inflight_gateway.state.demand import DemandCounters
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.types import Endpoint, EngineSample, ServiceConfig
from tests.gateway.virtual.loop import HOST, VirtualLoop

SCRAPE_S, TICK_S = 1.0, 0.1


class Pod:
    """Attributes: link: what requests of its relay call."""

    def __init__(
        self,
        name: str,
        config: ServiceConfig,
        endpoints: Sequence[Endpoint],
        sample: Callable[[str], EngineSample],
    ) -> None:
        self.name, self._service = name, config.key
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self._tasks: list[asyncio.Task[Any]] = []
        self._sample = sample
        self._samples: dict[str, EngineSample] = {}
        self._catalog = Catalog()
        self._catalog.update(services={config.key: config}, endpoints={config.key: tuple(endpoints)}, complete=True)
        estimates, holds = Estimates(), HoldQueue()
        self._ledger = Ledger(self._catalog.endpoints_of, self._samples.get, estimates)
        gate = Gate(KeyTables(self._catalog), estimates, clock=loop.time)
        log = RequestLog(Metrics(), PicksLog(), access_log=False)
        demand = DemandCounters(estimates.answer_tokens)
        self.requests = Requests(
            *(self._catalog, Picker(self._ledger.ranking), holds, self._ledger, gate, log, demand), clock=loop.time
        )
        self._pods = ReadyPods(name, self._catalog)
        self._links = RelayLinks(self.requests, self._catalog, self._pods)
        self._in_flight = Counter[str]()
        catalog = Catalog()
        alone = Alone(catalog, lambda address: self._in_flight[address])
        self._pickers = Pickers(self._socket, f"relay of {name}", catalog, alone, lambda keys: None)
        self.link = self._pickers.asks

    @property
    def _socket(self) -> Path:
        return Path("/nowhere", self.name)

    def set_ready(self, pods: Collection[Pod]) -> None:
        """Makes these pods the ready ones."""

    def owner(self, service: ServiceKey) -> str:
        return self.name

    async def start(self) -> None:
        await self._here(self._serve())
        self._tasks = [self._here(each) for each in (self._tick(), self._scrape(), self._pickers.run())]

    def kill(self) -> None:
        """Ends all of the pod at once, as `kill -9`."""
        for task in self._tasks:
            task.cancel()
        self._loop.kill(self.name)

    def hang(self) -> None:
        """Stops all of the pod, as SIGSTOP."""
        self._loop.hang(self.name)

    async def ask(self, ask: Ask) -> Go | Refuse:
        """The answer to an attempt of the relay."""
        asked = _Asked()
        self.link.ask(ask, asked)
        return await asked.answer

    def _here(self, program: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a program of this pod."""
        token = HOST.set(self.name)
        try:
            return asyncio.create_task(program)
        finally:
            HOST.reset(token)

    async def _serve(self) -> None:
        await self._links.serve(self._socket)

    async def _tick(self) -> None:
        while True:
            self.requests.expire()
            self.requests.release(changed=False)
            await asyncio.sleep(TICK_S)

    async def _scrape(self) -> None:
        while True:
            for endpoint in self._catalog.endpoints_of(self._service):
                self._samples[endpoint.address] = self._sample(endpoint.address)
                self._ledger.sampled(endpoint.address, self._loop.time())
            self.requests.release(self._service)
            await asyncio.sleep(SCRAPE_S)


class _Asked:
    def __init__(self) -> None:
        self.answer: asyncio.Future[Go | Refuse] = asyncio.get_running_loop().create_future()

    def go(self, go: Go) -> None:
        self._set(go)

    def refused(self, refuse: Refuse) -> None:
        self._set(refuse)

    def _set(self, answer: Go | Refuse) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

"""A gateway pod in virtual time: a picker with all its parts, and a relay that asks the pickers."""

from __future__ import annotations

import asyncio
import tempfile
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
from inflight_gateway.link.wire import Ask, Go, Keys, Refuse
from inflight_gateway.pick.picker import Picker
from inflight_gateway.relay.pickers.alone import Alone
from inflight_gateway.relay.pickers.pickers import Pickers
from inflight_gateway.requests.registry import Requests
from inflight_gateway.state.demand import DemandCounters
from inflight_gateway.state.picks import PicksLog
from inflight_gateway.telemetry.metrics import Metrics
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.types import Endpoint, EngineSample, GatewayPod, ServiceConfig
from tests.gateway.virtual.loop import HOST, VirtualLoop

SOCKETS = Path(tempfile.gettempdir(), "virtual")
"""Where sockets would be."""
SCRAPE_S, REFRESH_S, TICK_S = 1.0, 1.0, 0.1
KEYS = Keys(b"the gateway's key")


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


class Program:
    """A process of a pod: all that it runs ends with it. Attributes: host: its name for the network."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._tasks: list[asyncio.Task[Any]] = []

    def run(self, *parts: Coroutine[Any, Any, Any]) -> None:
        """Starts parts of it."""
        token = HOST.set(self.host)
        self._tasks += [asyncio.create_task(part) for part in parts]
        HOST.reset(token)

    def kill(self) -> None:
        """Ends it at once, as `kill -9`."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        virtual_loop().kill(self.host)

    def hang(self) -> None:
        """Stops it, as SIGSTOP."""
        virtual_loop().hang(self.host)

    def wake(self) -> None:
        virtual_loop().wake(self.host)


class PickerProgram(Program):
    """Attributes: requests: of this picker. pods: the ready gateway pods."""

    def __init__(
        self,
        pod: str,
        config: ServiceConfig,
        endpoints: Sequence[Endpoint],
        sample: Callable[[str], EngineSample],
        socket: Path,
        port: int,
    ) -> None:
        super().__init__(f"{pod} picker")
        self._service, self._sample, self._socket, self._port = config.key, sample, socket, port
        self._loop = virtual_loop()
        self._samples: dict[str, EngineSample] = {}
        self._catalog = Catalog()
        self._catalog.update(services={config.key: config}, endpoints={config.key: tuple(endpoints)}, complete=True)
        self.pods = ReadyPods(pod, self._catalog)
        estimates, holds = Estimates(), HoldQueue()
        self._ledger = Ledger(self._catalog.endpoints_of, self._samples.get, estimates)
        gate = Gate(KeyTables(self._catalog), estimates, clock=self._loop.time)
        log = RequestLog(Metrics(), PicksLog(), access_log=False)
        demand = DemandCounters(estimates.answer_tokens)
        self.requests = Requests(
            *(self._catalog, Picker(self._ledger.ranking), holds, self._ledger, gate, log, demand),
            clock=self._loop.time,
        )
        self._links = RelayLinks(self.requests, self._catalog, self.pods)
        self._links.set_keys(KEYS)

    def set_pods(self, ready: Collection[GatewayPod]) -> None:
        self.pods.set(ready)
        self._links.tell_pods()

    def start(self) -> None:
        self.run(self._serve(), self._tick(), self._refresh(), self._scrape())

    def kill(self) -> None:
        super().kill()
        self.run(self._links.close())

    async def _serve(self) -> None:
        await self._links.serve(self._socket)
        await self._links.listen("127.0.0.1", self._port)

    async def _tick(self) -> None:
        while True:
            self.requests.expire()
            self.requests.release(changed=False)
            self._links.tell_pods()
            await asyncio.sleep(TICK_S)

    async def _refresh(self) -> None:
        while True:
            self.pods.refresh()
            await asyncio.sleep(REFRESH_S)

    async def _scrape(self) -> None:
        while True:
            for endpoint in self._catalog.endpoints_of(self._service):
                self._samples[endpoint.address] = self._sample(endpoint.address)
                self._ledger.sampled(endpoint.address, self._loop.time())
            self.requests.release(self._service)
            await asyncio.sleep(SCRAPE_S)


class Pod:
    """Attributes: alive: not killed. picker: the running one. relay: its process. pickers: those that it asks."""

    def __init__(
        self,
        number: int,
        config: ServiceConfig,
        endpoints: Sequence[Endpoint],
        sample: Callable[[str], EngineSample],
    ) -> None:
        self.name = f"gw-{number}"
        self.peer = GatewayPod(self.name, f"127.0.0.1:{number + 1}")
        socket = SOCKETS / self.name
        self._make = lambda: PickerProgram(self.name, config, endpoints, sample, socket, number + 1)
        self._ready: Collection[GatewayPod] = ()
        self.alive = True
        self.picker = self._make()
        self.relay = Program(f"{self.name} relay")
        self._in_flight = Counter[str]()
        catalog = Catalog()
        alone = Alone(catalog, lambda address: self._in_flight[address])
        self.pickers = Pickers(socket, f"relay of {self.name}", catalog, alone, lambda keys: None)

    def set_ready(self, pods: Collection[Pod]) -> None:
        """Makes these pods the ready ones."""
        self._ready = [pod.peer for pod in pods]
        self.picker.set_pods(self._ready)

    def start(self) -> None:
        self.start_picker()
        self.relay.run(self.pickers.run())

    def start_picker(self) -> None:
        """Starts a picker that knows nothing, in place of one that was killed."""
        self.picker = self._make()
        self.picker.set_pods(self._ready)
        self.picker.start()

    def kill(self) -> None:
        """Ends the whole pod at once."""
        self.alive = False
        self.picker.kill()
        self.relay.kill()

    def owner(self, service: ServiceKey) -> str:
        """Returns the pod that owns a service, as this pod sees it."""
        return self.picker.pods.owner(service)

    async def ask(self, ask: Ask) -> Go | Refuse:
        """Returns the answer to an attempt of the relay. Pods that are killed never answer."""
        asked = _Asked()
        self.pickers.asks.ask(ask, asked)
        answer = await asked.answer
        if isinstance(answer, Go):
            self._in_flight[answer.endpoints[0]] += 1
        return answer

    def ended(self, address: str) -> None:
        """Notes that a request at an engine has ended."""
        self._in_flight[address] -= 1


class _Asked:
    def __init__(self) -> None:
        self.answer: asyncio.Future[Go | Refuse] = asyncio.get_running_loop().create_future()

    def go(self, go: Go) -> None:
        self._set(go)

    def refused(self, refuse: Refuse) -> None:
        self._set(refuse)

    def held(self) -> None: ...

    def _set(self, answer: Go | Refuse) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

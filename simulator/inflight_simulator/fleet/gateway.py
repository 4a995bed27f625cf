"""The gateway in front of a simulated fleet: the picker of the pod that owns the service, as the gateway runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush

import msgspec
import numpy as np

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.discovery.service_config import read_service
from inflight_gateway.engines.ledger import Ledger
from inflight_gateway.hold.queue import HoldQueue
from inflight_gateway.link.ownership import Owners
from inflight_gateway.link.wire import Ask, Go, Held, Refuse, Running
from inflight_gateway.pick.picker import Picker
from inflight_gateway.request.body import Body
from inflight_gateway.request.prefix import BLOCK_TOKENS, BYTES_PER_TOKEN, MAX_BLOCKS
from inflight_gateway.requests.registry import Requests
from inflight_gateway.state.demand import DemandCounters
from inflight_gateway.state.load import GatewayLoads, ServiceLoad
from inflight_gateway.telemetry.request_log import RequestLog
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.types import Endpoint, EngineSample, Finished, Pick, Refusal, RequestView
from inflight_simulator.fleet.config import FleetConfig
from inflight_simulator.fleet.replicas.pods import Pod
from inflight_simulator.fleet.replicas.request_states import RequestStates
from inflight_simulator.fleet.service import NAME, NAMESPACE, gateway_manifest_of

SCRAPE_S = 1.0
_PATH = "/v1/chat/completions"
SERVICE = ServiceKey(NAMESPACE, NAME)
_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)
"""Factor that makes hashes of consecutive ids: 2^64 / the golden ratio, Knuth 1998, 6.4."""

MOVE_AGAIN_S = 1.0
"""Seconds after which a relay asks again for an engine that answers, while one of the prefill set goes on."""

Send = Callable[[int, int, float], None]
"""Sends a request to a pod, or moves it there. Args: number of the pod, id of the request, time."""


class OwnerPicker:
    """The picker of one gateway pod, put together as in `inflight_gateway.wiring`, without its ports.

    Args:
        sample: returns the latest sample of an engine.
        clock: seconds.
    """

    def __init__(
        self, config: FleetConfig, sample: Callable[[str], EngineSample | None], clock: Callable[[], float]
    ) -> None:
        service, _ = read_service(gateway_manifest_of(config))
        self.catalog = Catalog()
        holds, estimates = HoldQueue(), Estimates()
        self.ledger = Ledger(self.catalog.endpoints_of, sample, estimates)
        gate = Gate(KeyTables(self.catalog), estimates, clock=clock)
        demand = DemandCounters(estimates.answer_tokens)
        self.requests = Requests(
            *(self.catalog, Picker(self.ledger.ranking), holds, self.ledger, gate, _NoLog(), demand), clock=clock
        )
        self._loads = GatewayLoads(self.catalog, holds, self.ledger, demand, clock)
        self.catalog.update(services={SERVICE: service}, complete=True)

    @property
    def load(self) -> ServiceLoad:
        """The load that the pod reports to the operator."""
        return self._loads.service_loads()[SERVICE]

    def set_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Sets the engines that take requests."""
        gone = {one.address for one in self.catalog.endpoints_of(SERVICE)} - {one.address for one in endpoints}
        change = self.catalog.update(endpoints={SERVICE: list(endpoints)})
        for name in gone:
            self.ledger.forget(SERVICE, name)
        self.requests.catalog_changed(change)


class Gateway:
    """The gateway's pods. A request arrives at each of them in turn; its relay asks the picker of the pod that owns the
    service, which sees engines by samples up to a second old and by requests sent since, as in the cluster.

    Args:
        send: called with each request that a replica gets.

    Attributes:
        begin: time since which the pods report, in seconds.
    """

    def __init__(self, config: FleetConfig, states: RequestStates, begin: float, send: Send) -> None:
        model = config.gateway
        self._config = config
        self._states = states
        self._send = send
        self._hop_s = model.hop_s
        self._now = begin
        self.begin = begin
        self._pods = [f"gateway-{number}" for number in range(model.pods)]
        self._owner_ends_s = math.inf if model.owner_ends_s is None else begin + model.owner_ends_s
        self._numbers: dict[str, int] = {}
        """Numbers of all pods that have been endpoints."""
        self._endpoints: tuple[Endpoint, ...] = ()
        self._engines: Sequence[Pod] = ()
        self._samples: dict[str, EngineSample] = {}
        self._next_scrape = begin
        self._mail: list[tuple[float, int, Callable[[], None]]] = []
        """Messages between two pods, and what else has its time, by this time and their number."""
        self._sent = 0
        self._relays: dict[int, str] = {}
        """Pod of each request under way."""
        self._waiting: dict[int, Ask] = {}
        """Requests that wait for an engine, the oldest first."""
        self._running: dict[int, tuple[Ask, str]] = {}
        """Requests at engines, with the engine's address."""
        self._apart: set[int] = set()
        """Requests at engines of the prefill set."""
        self._picker = self._own()

    @property
    def num_held(self) -> int:
        return len(self._waiting) - sum(each in self._apart for each in self._waiting)

    @property
    def num_unplaced(self) -> int:
        """Requests without an engine that answers."""
        return self.num_held + len(self._apart)

    @property
    def next_s(self) -> float:
        """Time of the next message between two pods, of what else has its time, or of the owner's end."""
        return min(self._mail[0][0] if self._mail else math.inf, self._owner_ends_s)

    def loads(self) -> dict[str, ServiceLoad]:
        """Returns what each pod reports to the operator."""
        return {pod: self._picker.load if pod == self._owner else ServiceLoad() for pod in self._pods}

    def arrive(self, request_id: int, now: float) -> None:
        """Places a request that arrives; `update` has been called at this time."""
        self._relays[request_id] = self._pods[request_id % len(self._pods)]
        self._waiting[request_id] = self._ask(request_id)
        self._place(request_id)

    def first_token(self, request_id: int, now: float) -> None:
        """Asks for an engine that answers, as one of the prefill set has computed a prompt."""
        self._now = now
        if self._goes_on(request_id):
            self._hand_over(request_id, 1)

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Does something at a time."""
        self._sent += 1
        heappush(self._mail, (time, self._sent, event))

    def run(self, now: float) -> None:
        """Delivers the messages that have arrived by now, and lets the owner end when its time has come."""
        self._now = now
        if now >= self._owner_ends_s:
            self._end_owner()
        while self._mail and self._mail[0][0] <= now:
            heappop(self._mail)[2]()

    def update(self, pods: Sequence[Pod], now: float) -> None:
        """Updates endpoints, ended requests and, once a second, metrics."""
        self._now = now
        self._engines = pods
        routable = [pod for pod in pods if pod.routable]
        endpoints = tuple(Endpoint(pod.name, pod.name, pod.prefill) for pod in routable)
        if endpoints != self._endpoints:
            self._endpoints = endpoints
            self._numbers.update((pod.name, pod.number) for pod in routable)
            self._picker.set_endpoints(endpoints)
        if self._states.ended:
            ended = self._states.ended.copy()
            self._states.ended.clear()
            for request_id in ended:
                self._end(request_id)
        if now >= self._next_scrape:
            self._next_scrape = now + SCRAPE_S
            for pod in routable:
                self._samples[pod.name] = self._sample(pod, now)
                self._picker.ledger.sampled(pod.name, now)
            if self._states.requests.tenants:
                # Relays report it once a second; only tenants' accounts depend on it.
                tokens = [(str(each), count) for each, count in self._generated().items() if each in self._running]
                self._picker.requests.progress(tokens)
            self._picker.requests.release()

    def tick(self, now: float) -> None:
        """Applies what depends on the time alone, as the picker does several times a second."""
        self._now = now
        self._picker.requests.expire()
        self._picker.requests.release(changed=False)

    # Relays and the owner.

    def _place(self, request_id: int) -> None:
        """Asks the owner for an engine."""
        picker, relay = self._picker, self._relays[request_id]

        def ask() -> None:
            waiting = self._waiting.get(request_id)
            if picker is self._picker and waiting is not None:
                age_s = self._now - self._states.arrival_s[request_id]
                waited_s = age_s if waiting.admitted else 0.0
                question = msgspec.structs.replace(waiting, age_s=age_s, waited_s=waited_s)
                picker.requests.ask(question, relay, partial(self._reply, picker))

        self._deliver(relay, ask)

    def _adopt(self, picker: OwnerPicker, running: Running) -> None:
        """Tells the next owner of a request that an engine answers."""
        request_id = int(running.ask.id)
        if picker is self._picker and request_id in self._running:
            picker.requests.running(running, self._relays[request_id], partial(self._reply, picker))

    def _ask(self, request_id: int) -> Ask:
        states, requests = self._states, self._states.requests
        prompt_tokens = states.prompt_tokens[request_id]
        blocks = b""
        if requests.hash_ids and requests.hash_ids[request_id]:
            blocks = _blocks(requests.hash_ids[request_id], requests.hash_tokens, prompt_tokens)
        return Ask(
            str(request_id),
            1,
            SERVICE,
            states.tenant(request_id),
            path=_PATH,
            body=Body(prompt_tokens=prompt_tokens, blocks=blocks),
            body_bytes=prompt_tokens * BYTES_PER_TOKEN,
        )

    def _reply(self, picker: OwnerPicker, message: Held | Go | Refuse) -> None:
        """Takes the owner's answer. An answer of an owner that ended in the meantime is ignored: the next one was asked
        again."""
        request_id = int(message.id)

        def take() -> None:
            ask = self._waiting.get(request_id)
            if picker is not self._picker or ask is None or ask.attempt != message.attempt:
                return
            if request_id in self._apart:
                if not self._goes_on(request_id):
                    return
                if not isinstance(message, Go):
                    self._stay(request_id)
                    return
            if isinstance(message, Held):
                self._waiting[request_id] = msgspec.structs.replace(ask, admitted=True)
                return
            del self._waiting[request_id]
            if isinstance(message, Refuse):
                self._states.refused[request_id] = message.code
                self._states.ended.append(request_id)
                return
            address = message.endpoints[0]
            self._running[request_id] = ask, address
            (self._apart.add if message.prefill else self._apart.discard)(request_id)
            self._send(self._numbers[address], request_id, self._now)

        if request_id in self._relays:
            self._deliver(self._relays[request_id], take)

    def _hand_over(self, request_id: int, generated: int) -> None:
        """Asks for an engine that answers a request of the prefill set."""
        picker, relay = self._picker, self._relays[request_id]
        ask, address = self._running[request_id]
        self._waiting[request_id] = msgspec.structs.replace(
            ask,
            attempt=ask.attempt + 1,
            body=self._ask(request_id).body.continued(generated),
            avoid=(address,),
            handed_over=True,
            admitted=False,
        )
        self._deliver(relay, lambda: picker.requests.left(ask.id, ask.attempt))
        self._place(request_id)

    def _stay(self, request_id: int) -> None:
        """Lets a request go on at its engine of the prefill set, and asks again later."""
        ask, (_, address) = self._waiting.pop(request_id), self._running[request_id]
        self._running[request_id] = ask, address
        running = Running(ask, address, self._generated().get(request_id, 1))
        self._deliver(self._relays[request_id], partial(self._adopt, self._picker, running))

        def again() -> None:
            if self._goes_on(request_id):
                self._hand_over(request_id, self._generated().get(request_id, 1))

        self.at(self._now + MOVE_AGAIN_S, again)

    def _goes_on(self, request_id: int) -> bool:
        """Returns whether an engine of the prefill set generates a request."""
        end_s = self._states.end_s[request_id]
        return request_id in self._apart and end_s != end_s

    def _end(self, request_id: int) -> None:
        """Reports the end of a request to the owner."""
        states, picker = self._states, self._picker
        relay = self._relays.pop(request_id)
        running = self._running.pop(request_id, None)
        self._waiting.pop(request_id, None)
        self._apart.discard(request_id)
        served = states.end_s[request_id] == states.end_s[request_id]
        report = Finished(
            request_id=str(request_id),
            service=SERVICE,
            status=200 if served else 503,
            stream=True,
            prompt_tokens=states.prompt_tokens[request_id] if served else 0,
            completion_tokens=states.output_tokens[request_id] if served else 0,
            endpoints=(running[1],) if running is not None else (),
            tenant=states.tenant(request_id),
            path=_PATH,
        )
        self._deliver(relay, lambda: self._report(picker, report))

    def _report(self, picker: OwnerPicker, report: Finished) -> None:
        if picker is self._picker:
            picker.requests.ended(report)

    def _deliver(self, relay: str, message: Callable[[], None]) -> None:
        """Delivers a message between a relay and the owner: at once in one pod, else `hop_s` later."""
        if relay == self._owner or not self._hop_s:
            message()
            return
        self.at(self._now + self._hop_s, message)

    def _own(self) -> OwnerPicker:
        """Makes the picker of the pod that owns the service now."""
        owner = Owners({SERVICE: len(self._endpoints)}, self._pods).owner(SERVICE)
        assert owner is not None
        self._owner = owner
        return OwnerPicker(self._config, self._samples.get, lambda: self._now)

    def _end_owner(self) -> None:
        """Ends the owner's pod: relays report what runs to the next owner, and ask it again for what waits. Requests
        that arrived at the pod that ends keep their relay, as in a drain."""
        self._owner_ends_s = math.inf
        self._pods.remove(self._owner)
        picker = self._picker = self._own()
        picker.set_endpoints(self._endpoints)
        generated = self._generated()
        for request_id, (ask, address) in self._running.items():
            if request_id in self._waiting:
                continue
            running = Running(ask, address, generated.get(request_id, 0))
            self._deliver(self._relays[request_id], partial(self._adopt, picker, running))
        for request_id in tuple(self._waiting):
            self._place(request_id)

    # Engines.

    def _generated(self) -> dict[int, int]:
        """Returns the tokens of the answers under way, by request."""
        decoding = (each for pod in self._engines for each in pod.replica.scheduler.decoding())
        return {request.request_id: tokens for request, tokens in decoding}

    def _sample(self, pod: Pod, now: float) -> EngineSample:
        replica = pod.replica
        replica.take_in_until(now)
        scheduler = replica.scheduler
        config, prefill = scheduler.config, self._config.prefill
        cost = self._config.replica.cost
        copies_per_s = 0.0 if prefill is None else prefill.tokens_per_s * cost.copied_token_s
        return EngineSample(
            at=now,
            running=scheduler.num_running,
            waiting=replica.num_waiting,
            waiting_prompt_tokens=replica.pending_tokens,
            kv_utilization=scheduler.kv_usage,
            kv_cache_tokens=config.num_blocks * config.block_size,
            limits=scheduler.limits,
            cost=cost,
            peer_slowness=1 / copies_per_s if copies_per_s else 0.0,
        )


class _NoLog(RequestLog):
    """A log that keeps nothing: metrics and the access log of the gateway have no reader here."""

    def __init__(self) -> None: ...

    def decided(self, seconds: float) -> None: ...

    def picked(self, view: RequestView, pick: Pick, held_s: float, index: str = "") -> None: ...

    def refused(self, service: ServiceKey | None, refusal: Refusal) -> None: ...

    def ended(self, finished: Finished, held_s: float | None, refusal: str, index: str = "") -> None: ...


def _blocks(hash_ids: tuple[int, ...], hash_tokens: int, prompt_tokens: int) -> bytes:
    """Returns the hashes of a prompt's leading blocks, as `Body.blocks`: equal where the prompts' ids are."""
    count = min(MAX_BLOCKS, min(prompt_tokens, len(hash_ids) * hash_tokens) // BLOCK_TOKENS)
    last = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(BLOCK_TOKENS) - np.uint64(1)
    ids = np.array(hash_ids, np.uint64)[last // np.uint64(hash_tokens)]
    mixed = ((ids << np.uint64(24)) + last) * _SPREAD
    # The index takes the low bits, which a product mixes least.
    return bytes((mixed ^ (mixed >> np.uint64(32))).astype("<u8"))

"""Stand-ins for the pickers of gateway pods, and a relay that asks them, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.link.ownership import Owners
from inflight_gateway.link.signed import Accepting, Sealed
from inflight_gateway.link.wire import (
    BEAT_S,
    Answering,
    Ask,
    Elsewhere,
    Ended,
    Frames,
    FromPicker,
    FromRelay,
    GatewayPod,
    Gateways,
    Go,
    Held,
    Keys,
    Known,
    Refuse,
    Released,
    Running,
    from_relay,
)
from inflight_gateway.relay.pickers.alone import Alone
from inflight_gateway.relay.pickers.pickers import Pickers
from inflight_gateway.types import Endpoint, Finished, ServiceConfig
from tests.gateway.virtual.loop import HOST, VirtualLoop

CHAT = ServiceKey("a", "chat")
ADDRESS = "10.0.0.1:8000"
PICKED = "10.0.0.9:1"
KEY = b"k" * 32
SOCKET = Path("/nowhere/picker.sock")

Answer = Callable[[Ask], Sequence[FromPicker]]


def go(ask: Ask) -> list[FromPicker]:
    return [Go(ask.id, ask.attempt, (PICKED,))]


def held(ask: Ask) -> list[FromPicker]:
    return [Held(ask.id, ask.attempt)]


def silent(ask: Ask) -> list[FromPicker]:
    return []


def services(*keys: ServiceKey) -> Known:
    return Known(
        services=tuple((key, ServiceConfig(key, "u", "m")) for key in keys),
        endpoints=tuple((key, (Endpoint(ADDRESS, "pod"),)) for key in keys),
        complete=True,
    )


class Picker:
    """A picker that notes messages, and answers each `Ask` by `answer`.

    Attributes:
        messages, frames: of the relay. has: requests that the picker knows, by id: the newest `Ask` of each. runs:
            ids of those that it holds no longer.
        own: it is that of the relay's pod, with a UNIX socket. welcome: its first messages.
        streams: open ones, the newest last.
    """

    def __init__(self, name: str, port: int, *, own: bool = False, answer: Answer = go) -> None:
        self.name, self.address, self.own = name, f"127.0.0.1:{port}", own
        self.answer = answer
        self.keys: tuple[bytes, ...] = (KEY,)
        self.messages: list[FromRelay] = []
        self.frames: list[list[FromRelay]] = []
        self.has: dict[str, Ask] = {}
        self.runs: set[str] = set()
        self.welcome: list[FromPicker] = []
        self.streams: list[_Stream] = []
        self.alive = False
        loop = asyncio.get_event_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self._beats: asyncio.Task[None] | None = None

    @property
    def pod(self) -> GatewayPod:
        return GatewayPod(self.name, self.address)

    async def start(self) -> Picker:
        token = HOST.set(self.name)
        if self.own:
            await self._loop.create_unix_server(lambda: _Stream(self, signed=False), str(SOCKET))
        else:
            port = int(self.address.rpartition(":")[2])
            await self._loop.create_server(lambda: _Stream(self, signed=True), "127.0.0.1", port)
        self._beats = self._loop.create_task(self._beat())
        HOST.reset(token)
        self.alive = True
        return self

    def kill(self) -> None:
        """Ends it as `kill -9`."""
        assert self._beats is not None
        self._beats.cancel()
        self._loop.kill(self.name)
        self.alive = False

    def hang(self) -> None:
        self._loop.hang(self.name)

    def wake(self) -> None:
        self._loop.wake(self.name)

    @property
    def hangs(self) -> bool:
        return self._loop.hangs(self.name)

    def send(self, *messages: FromPicker) -> None:
        if self.streams:
            self.streams[-1].send(messages)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]

    @property
    def asked(self) -> list[str]:
        """Ids of all questions."""
        return [ask.id for ask in self.of(Ask)]

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self.send()

    def take(self, messages: list[FromRelay]) -> None:
        self.frames.append(messages)
        self.messages += messages
        for message in messages:
            match message:
                case Ask():
                    self.has[message.id] = message
                    self.runs.discard(message.id)
                    self.reply(message, self.answer(message))
                case Running():
                    self.has[message.ask.id] = message.ask
                    self.runs.add(message.ask.id)
                case Answering():
                    self.runs.add(message.id)
                case Released():
                    self.has = {one: ask for one, ask in self.has.items() if ask.service != message.service}
                case Ended():
                    self.has.pop(message.report.request_id, None)

    def reply(self, ask: Ask, answers: Sequence[FromPicker]) -> None:
        for answer in answers:
            if isinstance(answer, Elsewhere):
                self.has.pop(ask.id, None)
            elif not isinstance(answer, Held):
                self.runs.add(ask.id)
        if answers:
            self.send(*answers)


class _Stream(asyncio.Protocol):
    def __init__(self, picker: Picker, *, signed: bool) -> None:
        self._picker = picker
        self._proof = Accepting(picker.keys, picker.name) if signed else None
        self._frames: Frames | Sealed = Frames()
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self._proof is None:
            self._open()
        else:
            transport.write(self._proof.greeting)

    def data_received(self, data: bytes) -> None:
        if self._proof is not None:
            try:
                self._transport.write(self._proof.feed(data))
            except ValueError:
                self._transport.abort()
                return
            if self._proof.sealed is not None:
                self._frames, self._proof = self._proof.sealed, None
                self._open()
            return
        for content in self._frames.feed(data):
            self._picker.take(from_relay.decode(content))

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._picker.streams:
            self._picker.streams.remove(self)
            self._picker.has.clear()

    def _open(self) -> None:
        self._picker.streams.append(self)
        self.send(self._picker.welcome)

    def send(self, messages: Sequence[FromPicker]) -> None:
        self._transport.write(self._frames.frame(messages))

    def write(self, data: bytes) -> None:
        """Sends bytes that are no frame."""
        self._transport.write(data)


class Asked:
    """Receiver of one answer; a second one fails."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Go | Refuse] = asyncio.get_event_loop().create_future()

    def go(self, go: Go) -> None:
        self.answer.set_result(go)

    def refused(self, refuse: Refuse) -> None:
        self.answer.set_result(refuse)

    def held(self) -> None: ...


class Relay:
    """A relay of the first pod. Create it in the event loop. Attributes: keys: that it was told."""

    def __init__(self) -> None:
        self.catalog, self.keys = Catalog(), list[Keys]()
        self.alone = Alone(self.catalog, lambda _: 0)
        self.pickers = Pickers(SOCKET, "relay-1", self.catalog, self.alone, self.keys.append)
        self.asks = self.pickers.asks
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_event_loop().create_task(self.pickers.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def ask(self, number: int = 1, attempt: int = 1, service: ServiceKey = CHAT, **more: Any) -> asyncio.Future[Any]:
        asked = Asked()
        self.asks.ask(Ask(f"r-{number}", attempt, service, **more), asked)
        return asked.answer

    def end(self, number: int = 1, **more: Any) -> None:
        self.asks.ended(report(number, **more))


def report(number: int = 1, service: ServiceKey = CHAT, **more: Any) -> Finished:
    return Finished(f"r-{number}", service, 200, stream=False, **more)


class Pods:
    """Some gateway pods: their pickers, and a relay of the first one."""

    def __init__(self, number: int = 1, *, answer: Answer = go, key: bytes | None = KEY) -> None:
        self.pickers = [Picker(f"gw-{each}", 7000 + each, own=each == 0, answer=answer) for each in range(number)]
        self.relay = Relay()
        self.keys, self.known = Keys(key), services(CHAT)
        self.ready(*self.pickers)

    @property
    def own(self) -> Picker:
        """The picker of the relay's pod."""
        return self.pickers[0]

    def ready(self, *pickers: Picker) -> None:
        """Makes these pods the ready ones; the relay's own picker says so if it lives."""
        gateways = Gateways("gw-0", tuple(picker.pod for picker in pickers), 2)
        self.own.welcome = [self.keys, gateways, self.known]
        self.own.send(gateways)

    async def start(self) -> Pods:
        for picker in self.pickers:
            await picker.start()
        self.relay.start()
        await asyncio.sleep(0.5)
        return self

    def owner(self, service: ServiceKey = CHAT) -> Picker:
        """The picker that owns a service among all of these pods."""
        name = Owners({CHAT: 1}, [picker.name for picker in self.pickers]).owner(service)
        return next(picker for picker in self.pickers if picker.name == name)

    def next(self, service: ServiceKey = CHAT) -> Picker:
        """The picker that owns it without the owner."""
        owner = self.owner(service)
        name = Owners({CHAT: 1}, [picker.name for picker in self.pickers]).owner(service, [owner.name])
        return next(picker for picker in self.pickers if picker.name == name)

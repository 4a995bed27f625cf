"""The relay's end of a stream, on sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link import signed
from inflight_gateway.link.signed import Accepting, Proving, Sealed
from inflight_gateway.link.wire import Ended, Frames, FromPicker, FromRelay, Held, Hello, from_relay
from inflight_gateway.relay.pickers import picker_link
from inflight_gateway.relay.pickers.health import Trust
from inflight_gateway.relay.pickers.picker_link import PickerLink
from inflight_gateway.types import Finished
from tests.gateway.relay.conftest import eventually

CHAT = ServiceKey("a", "chat")
KEY = b"k" * 32
RELAY = "relay-1"


def report(number: int, **more: Any) -> Finished:
    return Finished(f"r-{number}", CHAT, 200, stream=False, **more)


class Picker(asyncio.Protocol):
    """A picker that notes messages. Args: proof: makes its side of a signed stream; None: it is on a UNIX socket."""

    def __init__(self, proof: Callable[[], Accepting] | None = None) -> None:
        self.messages: list[FromRelay] = []
        self.connections = 0
        self._new_proof = proof
        self._proof: Accepting | None = None
        self._frames: Frames | Sealed = Frames()
        self.transport: Any
        self.silent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.connections += 1
        self._frames = Frames()
        self._proof = None if self._new_proof is None else self._new_proof()
        if self.silent:
            return
        if self._proof is None:
            self.send()
        else:
            self.transport.write(self._proof.greeting)

    def data_received(self, data: bytes) -> None:
        if self._proof is not None:
            try:
                self.transport.write(self._proof.feed(data))
            except ValueError:
                self.transport.abort()
                return
            if self._proof.sealed is not None:
                self._frames, self._proof = self._proof.sealed, None
                self.send()
            return
        for content in self._frames.feed(data):
            self.messages += from_relay.decode(content)

    def send(self, *messages: FromPicker) -> None:
        self.transport.write(self._frames.frame(messages))

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]


class Receiver:
    """Sends a Hello on each stream, and notes what the link calls."""

    def __init__(self) -> None:
        self.told: list[FromPicker] = []
        self.unsent: list[Finished] = []

    def opened(self, link: PickerLink) -> None:
        link.send(Hello(RELAY))

    def heard_again(self, link: PickerLink) -> None: ...

    def take(self, link: PickerLink, messages: list[FromPicker]) -> None:
        self.told += messages

    def lost(self, link: PickerLink, unsent: list[Finished]) -> None:
        self.unsent += unsent


class Connected:
    """A link and its picker."""

    def __init__(self, picker: Picker, address: Path | str, proving: Callable[[], Proving | None]) -> None:
        self.picker, self.receiver = picker, Receiver()
        self.link = PickerLink("gw-1", address, self.receiver, proving)
        self._task = asyncio.create_task(self.link.run())

    async def open(self, times: int = 1) -> None:
        await eventually(lambda: len(self.picker.of(Hello)) >= times)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def unix(tmp_path) -> AsyncIterator[Connected]:
    picker, path = Picker(), tmp_path / "picker.sock"
    server = await asyncio.get_running_loop().create_unix_server(lambda: picker, str(path))
    made = Connected(picker, path, lambda: None)
    await made.open()
    yield made
    await made.stop()
    server.close()


@pytest.fixture
async def tcp() -> AsyncIterator[Callable[..., Any]]:
    ends: list[Any] = []

    async def make(
        host: str = "127.0.0.1", pod: str = "gw-1", relay_key: bytes | None = KEY, silent=False
    ) -> Connected:
        picker = Picker(lambda: Accepting((KEY,), "gw-1"))
        picker.silent = silent
        server = await asyncio.get_running_loop().create_server(lambda: picker, host, 0)
        port = server.sockets[0].getsockname()[1]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        made = Connected(picker, address, lambda: None if relay_key is None else Proving((relay_key,), RELAY, pod))
        ends.extend((made, server))
        return made

    yield make
    for made, server in zip(ends[::2], ends[1::2], strict=True):
        await made.stop()
        server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_signed_stream_carries_messages_both_ways(tcp, host):
    made = await tcp(host)
    await made.open()
    assert made.link.trust is Trust.TRUSTED
    made.link.send(Ended(report(1)))
    await eventually(lambda: made.picker.of(Ended) == [Ended(report(1))])
    made.picker.send(Held("r-1", 1))
    await eventually(lambda: made.receiver.told == [Held("r-1", 1)])


@pytest.mark.parametrize("more", [{"relay_key": b"other" * 8}, {"relay_key": None}, {"pod": "gw-2"}])
async def test_without_the_pods_key_or_name_there_is_no_stream(tcp, more):
    made = await tcp(**more)
    await asyncio.sleep(0.3)
    assert made.link.trust is Trust.GONE
    assert not made.picker.messages


async def test_a_picker_that_says_nothing_is_tried_again(tcp, monkeypatch):
    monkeypatch.setattr(picker_link, "HANDSHAKE_S", 0.1)
    made = await tcp(silent=True)
    await eventually(lambda: made.picker.connections >= 2)
    made.picker.silent = False
    await made.open()


async def test_a_signed_connection_is_watched_by_the_kernel(tcp):
    import socket

    made = await tcp()
    await made.open()
    connection = made.link._stream._transport.get_extra_info("socket")
    option = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert option == 1000 * signed.UNANSWERED_S
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_reports_that_did_not_leave_are_given_back(unix, monkeypatch):
    monkeypatch.setattr(picker_link, "MAX_OUTBOX", 100)
    unix.link._stream.pause_writing()
    for number in range(101):
        unix.link.send(Ended(report(number)))
    await unix.open(2)
    assert unix.receiver.unsent == [report(number) for number in range(101)]
    assert not unix.picker.of(Ended)


async def test_a_stream_to_a_picker_that_does_not_read_is_given_up(unix, monkeypatch):
    monkeypatch.setattr(picker_link, "MAX_OUTBOX", 100)
    transport = unix.picker.transport
    transport.pause_reading()
    for number in range(1000):
        unix.link.send(Ended(report(number, path="/" + 2000 * "x")))
        if number % 20 == 0:
            await asyncio.sleep(0)
    await unix.open(2)
    assert len(unix.link._outbox) <= 100
    assert len(unix.picker.of(Ended)) + len(unix.receiver.unsent) <= 1000


async def test_what_was_sent_leaves_before_the_stream_closes(unix):
    unix.link.send(Ended(report(1)))
    await unix.stop()
    await eventually(lambda: unix.picker.of(Ended) == [Ended(report(1))])

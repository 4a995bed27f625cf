"""The relay's end of the stream, with a picker that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.link import wire
from inflight_gateway.link.wire import (
    ACKNOWLEDGED_S,
    Answering,
    Ask,
    Ended,
    Go,
    Held,
    Hello,
    Keys,
    Known,
    Left,
    Pods,
    Progress,
    Refuse,
)
from inflight_gateway.relay import picker_link
from inflight_gateway.relay.alone import Alone
from inflight_gateway.relay.picker_link import PickerLink
from inflight_gateway.request.body import Body
from inflight_gateway.types import Endpoint, Finished, ServiceConfig
from tests.gateway.relay.conftest import eventually

CHAT = ServiceKey("a", "chat")
ADDRESS = "10.0.0.1:8000"
KNOWN = Known(
    services=((CHAT, ServiceConfig(CHAT, "u", "m")),),
    endpoints=((CHAT, (Endpoint(ADDRESS, "pod"),)),),
    complete=True,
)


class FakePicker:
    """A stand-in that notes messages and frames, and answers each `Ask` by `answer`."""

    def __init__(self, path: Path, answer: Callable[[Ask], list] = lambda ask: []) -> None:
        self.path, self.answer = path, answer
        self.messages: list = []
        self.frames: list[list] = []
        self.streams: list[asyncio.StreamWriter] = []

    async def start(self) -> FakePicker:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        return self

    async def stop(self) -> None:
        self._server.close()
        for stream in self.streams:
            stream.transport.abort()
        self.path.unlink(missing_ok=True)
        await asyncio.sleep(0.01)

    def send(self, *messages) -> None:
        self.streams[-1].write(wire.frame(messages))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.streams.append(writer)
        self.send(Keys(b"k"), Pods(1, 1), KNOWN)
        frames = wire.Frames()
        while data := await reader.read(2**16):
            for content in frames.feed(data):
                messages = wire.from_relay.decode(content)
                self.frames.append(messages)
                self.messages += messages
                for message in messages:
                    if isinstance(message, Ask) and (answers := self.answer(message)):
                        self.send(*answers)

    def of(self, kind: type) -> list:
        return [message for message in self.messages if isinstance(message, kind)]

    async def until(self, kind: type, count: int = 1) -> list:
        await eventually(lambda: len(self.of(kind)) >= count)
        return self.of(kind)


class Asked:
    """Receiver of one answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future = asyncio.get_running_loop().create_future()

    def go(self, go: Go) -> None:
        self.answer.set_result(go)

    def refused(self, refuse: Refuse) -> None:
        self.answer.set_result(refuse)


class Relay:
    def __init__(self, path: Path) -> None:
        self.catalog, self.keys = Catalog(), []
        self.alone = Alone(self.catalog, lambda _: 0)
        self.link = PickerLink(path, "relay-1", self.catalog, self.alone, self.keys.append)
        self.task = asyncio.create_task(self.link.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def known(self) -> None:
        await eventually(lambda: self.catalog.complete)

    def ask(self, number: int = 1, attempt: int = 1, **more) -> asyncio.Future:
        asked = Asked()
        self.link.ask(Ask(f"r-{number}", attempt, CHAT, **more), asked)
        return asked.answer


def go(ask: Ask) -> list:
    return [Go(ask.id, ask.attempt, ("10.0.0.9:1",))]


def held(ask: Ask) -> list:
    return [Held(ask.id, ask.attempt)]


def report(number: int = 1, **more) -> Finished:
    return Finished(f"r-{number}", CHAT, 200, stream=False, **more)


@pytest.fixture
async def picker(tmp_path) -> AsyncIterator[FakePicker]:
    made = await FakePicker(tmp_path / "picker.sock", go).start()
    yield made
    await made.stop()


@pytest.fixture
async def relay(picker) -> AsyncIterator[Relay]:
    made = Relay(picker.path)
    await made.known()
    yield made
    await made.stop()


async def test_a_relay_says_hello_and_takes_what_the_picker_knows(picker, relay):
    assert await picker.until(Hello) == [Hello("relay-1")]
    assert set(relay.catalog.services) == {CHAT}
    assert relay.keys == [Keys(b"k")]
    picker.send(Pods(3, 2))
    await eventually(lambda: relay.alone.relays == 6)


async def test_the_picker_answers_and_hears_of_the_attempt(picker, relay):
    assert (await relay.ask(body=Body(blocks=b"12345678"))).endpoints == ("10.0.0.9:1",)
    relay.link.answering("r-1", "10.0.0.9:1", ("10.0.0.8:1",), lambda: 0)
    assert await picker.until(Answering) == [Answering("r-1", 1, "10.0.0.9:1", ("10.0.0.8:1",))]
    relay.link.left("r-1")
    assert await picker.until(Left) == [Left("r-1", 1)]
    relay.link.ended(report())
    assert await picker.until(Ended) == [Ended(report())]


async def test_messages_of_one_turn_of_the_loop_are_one_frame(picker, relay):
    await picker.until(Hello)
    answers = [relay.ask(number) for number in range(100)]
    await asyncio.gather(*answers)
    assert [len(frame) for frame in picker.frames] == [1, 100]


async def test_a_picker_that_refuses_is_obeyed(picker, relay):
    picker.answer = lambda ask: [Refuse(ask.id, ask.attempt, 429, "rate_limit_exceeded", "slow down")]
    assert (await relay.ask()).status == 429


async def test_without_an_acknowledgement_the_relay_picks_alone_and_a_late_go_is_ignored(picker, relay):
    picker.answer = lambda ask: []
    begun = asyncio.get_running_loop().time()
    answer = await relay.ask()
    assert ACKNOWLEDGED_S - 0.01 <= asyncio.get_running_loop().time() - begun < 2
    assert answer.endpoints == (ADDRESS,)
    picker.send(Go("r-1", 1, ("10.0.0.9:1",)))
    relay.link.answering("r-1", ADDRESS, (), lambda: 0)
    # The picker counts it then: its question was answered by the engine.
    assert await picker.until(Answering) == [Answering("r-1", 1, ADDRESS)]
    assert picker.of(Left) == []


async def test_a_picker_that_works_through_a_burst_is_waited_for(picker, relay):
    """Else a burst would pass by the limits and the queue."""
    picker.answer = lambda ask: []
    answers = [relay.ask(number) for number in range(6)]
    await picker.until(Ask, 6)
    for number in range(6):
        await asyncio.sleep(ACKNOWLEDGED_S / 2)
        picker.send(Go(f"r-{number}", 1, ("10.0.0.9:1",)))
    assert {(await answer).endpoints for answer in answers} == {("10.0.0.9:1",)}


async def test_a_picker_that_answers_all_but_one_is_not_waited_for(picker, relay, monkeypatch):
    monkeypatch.setattr(picker_link, "LONGEST_ACKNOWLEDGEMENT_S", 2 * ACKNOWLEDGED_S)
    picker.answer = lambda ask: [] if ask.id == "r-0" else go(ask)
    forgotten = relay.ask(0)
    for number in range(1, 8):
        await relay.ask(number)
        await asyncio.sleep(ACKNOWLEDGED_S / 2)
    assert forgotten.done()
    assert forgotten.result().endpoints == (ADDRESS,)


async def test_a_held_request_waits_for_as_long_as_the_picker_holds_it(picker, relay):
    picker.answer = held
    answer = relay.ask()
    await asyncio.sleep(2 * ACKNOWLEDGED_S)
    assert not answer.done()
    picker.send(Go("r-1", 1, ("10.0.0.9:1",)))
    assert (await answer).endpoints == ("10.0.0.9:1",)


async def test_without_a_picker_the_relay_picks_at_once(picker, relay):
    await picker.stop()
    async with asyncio.timeout(0.1):
        assert (await relay.ask()).endpoints == (ADDRESS,)


async def test_held_requests_of_a_lost_picker_are_asked_for_again_or_picked_alone(picker, relay):
    picker.answer = held
    answers = [relay.ask(number, age_s=1.0) for number in range(2)]
    await picker.until(Ask, 2)
    await asyncio.sleep(0.05)
    await picker.stop()
    await asyncio.sleep(0.05)
    assert not answers[0].done()
    again = await FakePicker(picker.path, lambda ask: go(ask) if ask.id == "r-0" else []).start()
    first, second = await asyncio.gather(*answers)
    assert first.endpoints == ("10.0.0.9:1",)
    assert second.endpoints == (ADDRESS,)
    assert all(ask.age_s > 1.0 for ask in again.of(Ask))
    await again.stop()


async def test_a_held_request_of_a_picker_that_does_not_return_is_picked_alone(picker, relay):
    picker.answer = held
    answer = relay.ask()
    await picker.until(Ask)
    await asyncio.sleep(0.05)
    await picker.stop()
    async with asyncio.timeout(ACKNOWLEDGED_S + 0.3):
        assert (await answer).endpoints == (ADDRESS,)


async def test_a_new_picker_hears_what_runs_and_reports_of_the_time_without_one(picker, relay):
    await relay.ask(1, body=Body(prompt_tokens=7, blocks=b"12345678"))
    await relay.ask(2)
    relay.link.answering("r-1", "10.0.0.7:1", (), lambda: 0)
    await picker.stop()
    await relay.ask(3)
    relay.link.ended(report(2, completion_tokens=5))
    again = await FakePicker(picker.path).start()
    (hello,) = await again.until(Hello)
    # Without the hashes of the prompt, which are long.
    assert hello.running == (
        (Ask("r-1", 1, CHAT, body=Body(prompt_tokens=7)), "10.0.0.7:1"),
        (Ask("r-3", 1, CHAT), ADDRESS),
    )
    assert [ended.report.completion_tokens for ended in await again.until(Ended)] == [5]
    await again.stop()


async def test_reports_without_a_picker_are_bounded_and_the_oldest_go(picker, relay, monkeypatch):
    monkeypatch.setattr(picker_link, "MAX_REPORTS", 10)
    await picker.stop()
    for number in range(15):
        relay.link.ended(report(number))
    again = await FakePicker(picker.path).start()
    ended = await again.until(Ended, 10)
    assert [each.report.request_id for each in ended] == [f"r-{number}" for number in range(5, 15)]
    assert relay.link.dropped == 5
    await again.stop()


async def test_progress_tells_changed_answers_once_a_second(picker, relay, monkeypatch):
    monkeypatch.setattr(picker_link, "PROGRESS_S", 0.02)
    await relay.stop()
    relay = Relay(picker.path)
    await relay.known()
    counts = {"r-1": 3, "r-2": 0}
    for number in (1, 2):
        await relay.ask(number)
        relay.link.answering(f"r-{number}", ADDRESS, (), lambda number=number: counts[f"r-{number}"])
    await picker.until(Progress)
    counts["r-2"] = 4
    await picker.until(Progress, 2)
    await asyncio.sleep(0.1)
    assert picker.of(Progress) == [Progress((("r-1", 3),)), Progress((("r-2", 4),))]
    await relay.stop()


async def test_refused_heads_are_reported_only_so_many_times_a_second(picker, relay):
    for number in range(1000):
        relay.link.refused(report(number))
    await asyncio.sleep(0.1)
    assert len(picker.of(Ended)) <= picker_link.MAX_REFUSED_PER_S
    assert relay.link.dropped >= 1000 - picker_link.MAX_REFUSED_PER_S


async def test_a_request_that_ends_before_its_answer_gets_none(picker, relay):
    picker.answer = lambda ask: []
    answer = relay.ask()
    relay.link.ended(report())
    await asyncio.sleep(ACKNOWLEDGED_S + 0.1)
    assert not answer.done()
    assert relay.link._pending == relay.link._running == {}


async def test_an_unreadable_message_costs_the_stream_and_nothing_else(picker, relay, caplog):
    picker.streams[-1].write(b"\x00\x00\x00\x02hi")
    await picker.until(Hello, 2)
    assert (await relay.ask()).endpoints == ("10.0.0.9:1",)
    assert "cannot be read" in caplog.text


async def test_a_picker_that_does_not_read_costs_no_memory_and_no_report(picker, relay, monkeypatch):
    monkeypatch.setattr(picker_link, "MAX_OUTBOX", 100)
    await picker.until(Hello)
    stream = relay.link._stream
    stream.pause_writing()
    for number in range(101):
        relay.link.ended(report(number))
    await picker.until(Ended, 101)
    assert relay.link._stream is not stream


async def test_a_stream_to_a_picker_that_hangs_is_given_up_and_its_reports_are_bounded(picker, relay, monkeypatch):
    monkeypatch.setattr(picker_link, "MAX_OUTBOX", 100)
    monkeypatch.setattr(picker_link, "MAX_REPORTS", 50)
    await picker.until(Hello)
    picker.streams[0].transport.pause_reading()
    for number in range(1000):
        relay.link.ended(report(number, path="/" + 2000 * "x"))
        if number % 20 == 0:
            await asyncio.sleep(0)
    await picker.until(Hello, 2)
    assert len(relay.link._outbox) <= 100
    assert len(picker.of(Ended)) + relay.link.dropped <= 1000


async def test_an_attempt_that_is_refused_without_the_picker_is_held_there_no_longer(picker, relay):
    picker.answer = lambda ask: []
    answer = relay.ask(attempt=2, avoid=(ADDRESS,))
    assert (await answer).status == 503
    assert await picker.until(Left) == [Left("r-1", 2)]

"""The picker's end of the streams to relays."""

from __future__ import annotations

import asyncio
import random

import pytest

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.link.server import MAX_KNOWN_BYTES, MAX_KNOWN_OBJECTS, MAX_REPLIES, RelayLinks, known
from inflight_gateway.link.wire import (
    MAX_FRAME_BYTES,
    Answering,
    Ask,
    Ended,
    Frames,
    Go,
    Held,
    Hello,
    Keys,
    Known,
    Left,
    Pods,
    Progress,
    frame,
    from_picker,
)
from inflight_gateway.types import Endpoint, Finished, ServiceConfig
from tests.gateway.gateway_stack import until

KEY = ServiceKey("default", "a")


class Registry:
    """Notes all messages, and answers each Ask by Held and Go."""

    def __init__(self):
        self.calls = []
        self.lost_relays = []

    def ask(self, ask, relay, reply):
        self.calls.append(ask)
        if ask.id == "bug":
            raise ZeroDivisionError
        reply(Held(ask.id, ask.attempt))
        reply(Go(ask.id, ask.attempt, ("10.0.0.1:80",)))

    def hello(self, running, relay, reply):
        self.calls.append(running)

    def answering(self, *values):
        self.calls.append(values)

    def progress(self, tokens):
        self.calls.append(tokens)

    def left(self, *values):
        self.calls.append(values)

    def ended(self, report):
        self.calls.append(report)

    def lost(self, relay):
        self.lost_relays.append(relay)

    def end(self, request_id):
        self.calls.append(request_id)


class Relay:
    """A relay's end. Attributes: frames: lists of messages. ended: the picker closed the stream."""

    def __init__(self, reader, writer):
        self.writer = writer
        self.frames = []
        self.ended = False
        self._task = asyncio.create_task(self._read(reader))

    async def _read(self, reader):
        frames = Frames()
        try:
            while data := await reader.read(2**20):
                self.frames += [from_picker.decode(content) for content in frames.feed(data)]
        except ConnectionError:
            pass
        self.ended = True

    def say(self, *messages):
        self.writer.write(frame(messages))

    def heard(self):
        return [message for each in self.frames for message in each]

    def close(self):
        self._task.cancel()
        self.writer.close()


class World:
    def __init__(self, folder, **options):
        self.socket = folder / "picker.sock"
        self.catalog, self.registry = Catalog(), Registry()
        self.links = RelayLinks(self.registry, self.catalog, **options)
        self.relays = []

    async def relay(self):
        relay = Relay(*await asyncio.open_unix_connection(str(self.socket)))
        self.relays.append(relay)
        await until(lambda: relay.frames, "the welcome")
        return relay


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    await made.links.serve(made.socket)
    yield made
    for relay in made.relays:
        relay.close()
    await made.links.close()


def add(catalog, count):
    keys = [ServiceKey("ns", f"s{number}") for number in range(count)]
    catalog.update(
        services={key: ServiceConfig(key, "u", key.name, api_keys_secret=key.name) for key in keys},
        endpoints={key: [Endpoint(f"10.0.{number // 250}.{number % 250}:80", "p")] for number, key in enumerate(keys)},
        secrets={ObjectKey("ns", key.name): {"k": b"x" * 100} for key in keys},
        outside={ServiceKey("ns", "out"): True},
        models={"m": (keys[0],)},
        hosts=Hosts(by_model=True),
        complete=True,
    )


def mirrored(messages):
    """The catalog of a relay with these messages."""
    mirror = Catalog()
    for one in messages:
        if isinstance(one, Known):
            mirror.update(
                services=dict(one.services),
                endpoints=dict(one.endpoints),
                secrets=dict(one.secrets),
                outside=dict(one.outside),
                models=dict(one.models),
                hosts=one.hosts,
                complete=one.complete,
            )
    return mirror


def state(catalog):
    secrets = {ref: dict(catalog.secret(ref)) for ref in catalog.secret_refs()}
    return (
        dict(catalog.services),
        dict(catalog.endpoints),
        secrets,
        catalog.outside,
        dict(catalog.models),
        catalog.hosts,
    )


async def test_a_relay_gets_keys_pods_and_all_that_is_known_and_then_each_change(world):
    add(world.catalog, 1000)
    world.links.set_keys(Keys(b"new", b"old"))
    relay = await world.relay()
    await until(lambda: mirrored(relay.heard()).complete, "all is known")
    assert relay.heard()[:2] == [Keys(b"new", b"old"), Pods(1, 1)]
    assert state(mirrored(relay.heard())) == state(world.catalog)
    complete = [one.complete for one in relay.heard() if isinstance(one, Known)]
    assert complete == [False] * (len(complete) - 1) + [True]
    rng = random.Random(1)
    for key in rng.sample(sorted(world.catalog.services), 20):
        world.catalog.update(services={key: None}, endpoints={key: []}, secrets={ObjectKey("ns", key.name): None})
    world.catalog.update(outside={ServiceKey("ns", "out"): False}, models={"m": ()}, hosts=Hosts())
    await until(lambda: state(mirrored(relay.heard())) == state(world.catalog), "the changes are known")


def test_what_is_known_comes_in_messages_of_bounded_sizes():
    catalog = Catalog()
    add(catalog, 2000)
    big = ServiceKey("ns", "big")
    catalog.update(
        endpoints={big: [Endpoint(f"10.1.{number // 250}.{number % 250}:80", "pod") for number in range(5000)]},
        secrets={ObjectKey("ns", f"big{number}"): {"k": bytes(2**20)} for number in range(3)},
    )
    every = Change(frozenset(catalog.services), frozenset(catalog.endpoints), catalog.secret_refs())
    messages = list(known(catalog, every))
    assert all(len(one.services) + len(one.endpoints) + len(one.secrets) <= MAX_KNOWN_OBJECTS for one in messages)
    assert max(len(frame([one])) for one in messages) <= 2 * MAX_KNOWN_BYTES < MAX_FRAME_BYTES // 8
    assert sum(len(one.services) for one in messages) == 2000


async def test_all_answers_of_one_turn_of_the_loop_come_in_one_frame(world):
    relay = await world.relay()
    before = len(relay.frames)
    relay.say(*(Ask(f"{number}", 1, KEY) for number in range(50)))
    await until(lambda: len(relay.heard()) >= 100, "all answers")
    assert len(relay.frames) == before + 1


async def test_in_a_burst_the_first_answers_come_before_the_last(world):
    relay = await world.relay()
    before = len(relay.frames)
    relay.say(*(Ask(f"{number}", 1, KEY) for number in range(200)))
    await until(lambda: len(relay.heard()) >= 400, "all answers")
    assert max(len(frame) for frame in relay.frames[before:]) <= MAX_REPLIES + 1


async def test_messages_reach_the_registry_in_their_order(world):
    relay = await world.relay()
    report = Finished("a", KEY, 200, True, endpoints=("10.0.0.1:80",))
    running = ((Ask("b", 2, KEY), "10.0.0.1:80"),)
    relay.say(Hello("r0", running), Answering("a", 1, "x", ("y",)), Progress((("a", 3),)), Left("b", 2), Ended(report))
    await until(lambda: len(world.registry.calls) == 5, "all messages")
    assert world.registry.calls == [running, ("a", 1, "x", ("y",)), (("a", 3),), ("b", 2), report]


MALFORMED = {
    "too long": b"\xff\xff\xff\xff",
    "no msgpack": b"\x00\x00\x00\x01\xc1",
    "no message": b"\x00\x00\x00\x02\x91\x05",
    "cut": b"\x00\x00\x00\x03\x91\x91\xa1",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("wrong", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_message_closes_that_stream_only(world, wrong):
    bad, good = await world.relay(), await world.relay()
    bad.writer.write(wrong)
    await until(lambda: bad.ended, "the stream is closed")
    await until(lambda: len(world.registry.lost_relays) == 1, "its requests end")
    good.say(Ask("a", 1, KEY))
    await until(lambda: any(isinstance(one, Go) for one in good.heard()), "an answer")
    assert world.links.connected == 1


async def test_a_bug_ends_one_request_and_no_stream(world, caplog):
    relay = await world.relay()
    relay.say(Ask("bug", 1, KEY), Ask("a", 1, KEY))
    await until(lambda: any(isinstance(one, Go) for one in relay.heard()), "an answer")
    assert world.registry.calls[1] == "bug"
    assert "ZeroDivisionError" in caplog.text


async def test_a_relay_that_does_not_read_is_cut_off_and_the_others_are_not(tmp_path):
    world = World(tmp_path, max_unsent_bytes=100_000)
    await world.links.serve(world.socket)
    reader, writer = await asyncio.open_unix_connection(str(world.socket))
    await until(lambda: world.links.connected == 1, "it is connected")
    good = await world.relay()
    for number in range(50):
        world.catalog.update(secrets={ObjectKey("ns", f"{number}"): {"k": bytes(100_000)}})
        await asyncio.sleep(0)
        if world.links.connected == 1:
            break
        await asyncio.sleep(0.002)
    assert world.links.connected == 1
    assert not good.ended
    writer.close()
    good.close()
    await world.links.close()
    del reader


async def test_relays_share_limits_by_the_number_of_their_streams_and_of_gateway_pods(world):
    first = await world.relay()
    await world.relay()
    world.links.set_pods(3)
    await until(lambda: Pods(3, 2) in first.heard(), "the shares")
    before = len(first.heard())
    world.links.set_pods(3)
    await asyncio.sleep(0.05)
    assert len(first.heard()) == before


async def test_relays_are_ready_once_they_have_read_all_that_is_known(world):
    add(world.catalog, 1000)
    assert not world.links.ready
    slow, writer = await asyncio.open_unix_connection(str(world.socket), limit=2**10)
    writer.write(frame([Hello("r0")]))
    await until(lambda: world.links.connected == 1, "it is connected")
    await asyncio.sleep(0.05)
    assert not world.links.ready
    reading = asyncio.create_task(slow.read(-1))
    await until(lambda: world.links.ready, "all is read")
    reading.cancel()
    writer.close()


async def test_the_end_of_the_picker_ends_no_requests(world):
    """They run on: their relay reports them to the next picker, so that none counts twice."""
    relay = await world.relay()
    await world.links.close()
    await until(lambda: relay.ended, "the stream is closed")
    await asyncio.sleep(0)
    assert world.registry.lost_relays == []

"""The picker's ends of the streams to relays."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.link import signed
from inflight_gateway.link.known import MAX_KNOWN_BYTES, MAX_KNOWN_OBJECTS, known
from inflight_gateway.link.ready_pods import ReadyPods
from inflight_gateway.link.server import RelayLinks
from inflight_gateway.link.stream import MAX_REPLIES
from inflight_gateway.link.wire import (
    MAX_FRAME_BYTES,
    MAX_TURNS,
    Answering,
    Ask,
    Elsewhere,
    Ended,
    Frames,
    Gateways,
    Go,
    Held,
    Hello,
    Keys,
    Known,
    Left,
    Progress,
    Refuse,
    Released,
    Running,
    frame,
    from_picker,
)
from inflight_gateway.types import Endpoint, Finished, GatewayPod, ServiceConfig
from tests.gateway.gateway_stack import until

KEY = ServiceKey("default", "a")
KEYS = (b"the gateway's key", b"the one before", b"another")


class StandInTransport(asyncio.Transport):
    open = True

    def write(self, data):
        assert len(data) == 32

    def abort(self):
        self.open = False


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

    def hello(self, name, relay):
        self.calls.append(name)

    def running(self, running, relay, reply):
        self.calls.append(running)

    def released(self, service, relay):
        self.calls.append(service)

    def moved(self, request_id):
        self.calls.append(f"moved {request_id}")

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

    def __init__(self, reader, writer, stream=None):
        self.writer = writer
        self.frames = []
        self.ended = False
        self._stream = stream or Frames()
        self._task = asyncio.create_task(self._read(reader))

    async def _read(self, reader):
        try:
            while data := await reader.read(2**20):
                self.frames += [from_picker.decode(content) for content in self._stream.feed(data)]
        except ConnectionError:
            pass
        self.ended = True

    def say(self, *messages):
        self.writer.write(self._stream.frame(messages))

    def heard(self):
        return [message for each in self.frames for message in each]

    def close(self):
        self._task.cancel()
        self.writer.close()


class World:
    def __init__(self, folder, **options):
        self.socket = folder / "picker.sock"
        self.catalog, self.registry = Catalog(), Registry()
        self.pods = ReadyPods("gw-0", self.catalog)
        self.links = RelayLinks(self.registry, self.catalog, self.pods, **options)
        self.links.set_keys(Keys(KEYS[0], KEYS[1]))
        self.relays = []

    async def relay(self):
        relay = Relay(*await asyncio.open_unix_connection(str(self.socket)))
        self.relays.append(relay)
        await until(lambda: relay.frames, "the welcome")
        return relay

    async def remote(self, keys=KEYS[:1], pod="gw-0"):
        """A relay of another pod; None: the picker closed the stream."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        proving = signed.Proving(keys, "r1", pod)
        while proving.sealed is None:
            data = await reader.read(2**16)
            if not data:
                writer.close()
                return None
            writer.write(proving.feed(data))
        relay = Relay(reader, writer, proving.sealed)
        relay.frames += [from_picker.decode(content) for content in proving.sealed.feed(proving.rest)]
        self.relays.append(relay)
        return relay

    def set_pods(self, *names):
        self.pods.set([GatewayPod(name, "10.0.0.1:9005") for name in names])
        self.links.tell_pods()


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    made.port = await made.links.listen("127.0.0.1", 0)
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
    relay = await world.relay()
    await until(lambda: mirrored(relay.heard()).complete, "all is known")
    assert relay.heard()[:2] == [Keys(*KEYS[:2]), Gateways("gw-0", (GatewayPod("gw-0", ""),), 1)]
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
    relay.frames.clear()
    relay.say(*(Ask(f"{number}", 1, KEY) for number in range(50)))
    await until(lambda: len(relay.heard()) >= 100, "all answers")
    assert len([one for one in relay.frames if one]) == 1


async def test_in_a_burst_the_first_answers_come_before_the_last(world):
    relay = await world.relay()
    before = len(relay.frames)
    relay.say(*(Ask(f"{number}", 1, KEY) for number in range(200)))
    await until(lambda: len(relay.heard()) >= 400, "all answers")
    assert max(len(frame) for frame in relay.frames[before:]) <= MAX_REPLIES + 1


async def test_messages_reach_the_registry_in_their_order(world):
    relay = await world.relay()
    report = Finished("a", KEY, 200, True, endpoints=("10.0.0.1:80",))
    running = Running(Ask("b", 2, KEY), "10.0.0.1:80", 7)
    relay.say(Hello("r0"), running, Answering("a", 1, "x", ("y",)), Progress((("a", 3),)), Left("b", 2), Ended(report))
    relay.say(Released(KEY))
    await until(lambda: len(world.registry.calls) == 7, "all messages")
    assert world.registry.calls == ["r0", running, ("a", 1, "x", ("y",)), (("a", 3),), ("b", 2), report, KEY]


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
    assert len(world.links.own) == 1


async def test_a_bug_ends_one_request_and_no_stream(world, caplog):
    relay = await world.relay()
    relay.say(Ask("bug", 1, KEY), Ask("a", 1, KEY))
    await until(lambda: any(isinstance(one, Go) for one in relay.heard()), "an answer")
    assert world.registry.calls[1] == "bug"
    # Unanswered, it would end the relay's trust in the picker.
    assert [(one.id, one.status) for one in relay.heard() if isinstance(one, Refuse)] == [("bug", 500)]
    assert "ZeroDivisionError" in caplog.text


async def test_a_relay_that_does_not_read_is_cut_off_and_the_others_are_not(tmp_path):
    world = World(tmp_path, max_unsent_bytes=100_000)
    await world.links.serve(world.socket)
    reader, writer = await asyncio.open_unix_connection(str(world.socket))
    await until(lambda: len(world.links.own) == 1, "it is connected")
    good = await world.relay()
    for number in range(50):
        world.catalog.update(secrets={ObjectKey("ns", f"{number}"): {"k": bytes(100_000)}})
        await asyncio.sleep(0)
        if len(world.links.own) == 1:
            break
        await asyncio.sleep(0.002)
    assert len(world.links.own) == 1
    assert not good.ended
    writer.close()
    good.close()
    await world.links.close()
    del reader


async def test_relays_of_the_pod_hear_of_the_ready_pods_and_of_the_number_of_relays(world):
    first = await world.relay()
    await world.relay()
    world.set_pods("gw-1", "gw-0")
    pods = tuple(GatewayPod(name, "10.0.0.1:9005") for name in ("gw-0", "gw-1"))
    await until(lambda: Gateways("gw-0", pods, 2) in first.heard(), "the pods")
    before = len(first.heard())
    world.set_pods("gw-0", "gw-1")
    await asyncio.sleep(0.05)
    assert len(first.heard()) == before
    world.set_pods()
    await until(lambda: first.heard()[-1] == Gateways("gw-0", (GatewayPod("gw-0", ""),), 2), "this pod alone is left")


async def test_a_picker_with_nothing_to_say_sends_beats(world):
    own, remote = await world.relay(), await world.remote()
    for relay in (own, remote):
        relay.frames.clear()
    await until(lambda: min(len(relay.frames) for relay in (own, remote)) >= 2, "two beats each")
    assert own.heard() == remote.heard() == []


# Services of other pods.


def owned_by(pods, pod):
    """A service that a pod owns."""
    return next(key for number in range(100) if pods.owner(key := ServiceKey("default", f"{number}")) == pod)


def answers(relay, name):
    return [one for one in relay.heard() if getattr(one, "id", "") == name]


async def test_a_picker_that_does_not_own_the_service_says_which_pod_does_and_forgets_the_request(world):
    relay = await world.relay()
    world.set_pods("gw-0", "gw-1")
    mine, other = owned_by(world.pods, "gw-0"), owned_by(world.pods, "gw-1")
    relay.say(Ask("a", 1, mine), Ask("b", 2, other))
    await until(lambda: answers(relay, "b"), "an answer")
    assert [type(one) for one in answers(relay, "a")] == [Held, Go]
    assert answers(relay, "b") == [Elsewhere("b", 2, "gw-1")]
    assert [getattr(one, "id", one) for one in world.registry.calls] == ["a", "moved b"]


async def test_a_pod_that_the_relay_cannot_reach_is_not_taken_for_the_owner(world):
    relay = await world.relay()
    world.set_pods("gw-0", "gw-1", "gw-2")
    other = owned_by(world.pods, "gw-1")
    relay.say(Ask("a", 1, other, without=("gw-1", "gw-2")))
    await until(lambda: answers(relay, "a"), "an answer")
    assert isinstance(answers(relay, "a")[0], Held)


async def test_after_two_answers_elsewhere_the_next_picker_answers_whatever_it_knows(world):
    relay = await world.relay()
    world.set_pods("gw-0", "gw-1")
    other = owned_by(world.pods, "gw-1")
    for turns in range(MAX_TURNS + 1):
        relay.say(Ask(f"{turns}", 1, other, turns=turns))
    await until(lambda: answers(relay, f"{MAX_TURNS}"), "an answer")
    assert [type(answers(relay, f"{turns}")[0]) for turns in range(3)] == [Elsewhere, Elsewhere, Held]


async def test_a_pod_that_drains_or_starts_leaves_services_to_the_others_and_keeps_them_if_there_is_none(world):
    relay = await world.relay()
    world.set_pods("gw-1")
    assert world.pods.owner(KEY) == "gw-1"
    world.set_pods("gw-0", "gw-1")
    world.pods.drain()
    world.links.tell_pods()
    assert world.pods.owner(owned_by(world.pods, "gw-1")) == "gw-1"
    left = Gateways("gw-0", (GatewayPod("gw-1", "10.0.0.1:9005"),), 1)
    await until(lambda: relay.heard()[-1] == left, "the relays hear of it")
    world.set_pods("gw-0")
    assert world.pods.owner(KEY) == "gw-0"


# Relays of other pods.


async def test_a_relay_of_another_pod_gets_answers_and_the_ready_pods_and_neither_keys_nor_the_catalog(world):
    add(world.catalog, 10)
    relay = await world.remote()
    relay.say(Hello("r1"), Ask("a", 1, KEY))
    await until(lambda: len(relay.heard()) == 3, "answers")
    world.catalog.update(services={ServiceKey("ns", "s1"): None})
    world.links.set_keys(Keys(b"new"))
    world.set_pods("gw-0", "gw-1")
    await asyncio.sleep(0.05)
    assert [type(one) for one in relay.heard()] == [Gateways, Held, Go, Gateways]
    assert (len(world.links.own), len(world.links.remote)) == (0, 1)
    assert not world.links.ready
    relay.close()
    await until(lambda: world.registry.lost_relays, "its requests end")
    assert len(world.links.remote) == 0


@pytest.mark.parametrize(
    ("keys", "pod", "opens"),
    [
        (KEYS[:1], "gw-0", True),
        ((KEYS[2], KEYS[1]), "gw-0", True),
        (KEYS[2:], "gw-0", False),
        (KEYS[:1], "gw-1", False),
    ],
    ids=["with the key", "with the previous key", "with another key", "for another pod"],
)
async def test_only_relays_with_the_gateways_key_are_connected(world, keys, pod, opens):
    relay = await world.remote(keys, pod)
    assert (relay is not None) is opens
    assert len(world.links.remote) == opens
    assert world.registry.lost_relays == []


async def test_without_a_gateway_key_no_relay_of_another_pod_is_connected(world):
    world.links.set_keys(Keys(None))
    assert await world.remote() is None


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n" * 20, b"\0" * 128, frame([Hello("r1")])], ids=["HTTP", "zeros", "frame"]
)
async def test_what_is_no_proof_reaches_no_request(world, sent, monkeypatch):
    monkeypatch.setattr("inflight_gateway.link.stream.HANDSHAKE_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(sent)
    async with asyncio.timeout(60):
        with suppress(ConnectionError):
            assert len(await reader.read(-1)) == 32
    writer.close()
    assert world.registry.calls == world.registry.lost_relays == []


async def test_connections_that_prove_nothing_keep_no_relay_out(world, monkeypatch):
    monkeypatch.setattr("inflight_gateway.link.server.MAX_UNPROVEN", 4)
    idle = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(12)]
    assert await world.remote() is not None
    assert len(world.links._unproven) <= 4
    for _, writer in idle:
        writer.close()


async def test_connections_of_one_turn_of_the_loop_are_bounded_too(world, monkeypatch):
    monkeypatch.setattr("inflight_gateway.link.server.MAX_UNPROVEN", 4)
    transports = [StandInTransport() for _ in range(12)]
    streams = [world.links._accept() for _ in transports]
    for stream, transport in zip(streams, transports, strict=True):
        stream.connection_made(transport)
    assert [transport.open for transport in transports] == [False] * 8 + [True] * 4
    for stream in streams:
        stream.connection_lost(None)
    assert not world.links._unproven


async def test_a_frame_that_was_changed_ends_the_stream_and_its_requests(world):
    relay = await world.remote()
    relay.say(Hello("r1"))
    content = bytearray(relay._stream.frame([Ask("a", 1, KEY)]))
    content[-1] ^= 1
    relay.writer.write(bytes(content))
    await until(lambda: world.registry.lost_relays, "its requests end")
    assert not any(isinstance(one, Ask) for one in world.registry.calls)


async def test_relays_are_ready_once_they_have_read_all_that_is_known(world):
    add(world.catalog, 1000)
    assert not world.links.ready
    slow, writer = await asyncio.open_unix_connection(str(world.socket), limit=2**10)
    writer.write(frame([Hello("r0")]))
    await until(lambda: len(world.links.own) == 1, "it is connected")
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

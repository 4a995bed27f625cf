"""Streams of KV cache events of real publishers, and of hostile ones."""

import asyncio
import contextlib
import time
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_engine.block_events import BlocksRemoved, BlocksStored
from inflight_engine.server.kv_events import wire
from inflight_engine.server.kv_events.publisher import KVEventPublisher
from inflight_engine.server.settings.kv_events import KVEventsConfig
from inflight_gateway.engines import event_stream, event_streams
from inflight_gateway.engines.event_streams import EventStreams
from inflight_gateway.engines.kv_events import apply
from inflight_gateway.types import KvEventPorts
from tests.gateway.gateway_stack import until

KEY = ServiceKey("default", "chat")
FIRST, SECOND = bytes(range(16)), bytes(range(16, 32))
ONE, TWO = wire.short(FIRST)[0], wire.short(SECOND)[0]


def stored(block_hash, parent=b""):
    return BlocksStored(block_hash, parent, b"", bytes(16))


def port_of(socket):
    return int(socket.last_endpoint.decode().rpartition(":")[2])


def opened(port="*", replay_port="*", **changes):
    """A publisher on loopback, and its ports."""
    endpoint, replay = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{replay_port}"
    if port != "*":
        endpoint = f"tcp://*:{port}"
    publisher = KVEventPublisher(KVEventsConfig(endpoint=endpoint, replay_endpoint=replay, **changes))
    publisher.started(16)
    return publisher, KvEventPorts(port_of(publisher._publishing), port_of(publisher._replaying))


class World:
    """Streams of engines on loopback; `blocks`: of each, by address."""

    def __init__(self):
        self.blocks = {}
        self.streams = EventStreams(lambda _, address, blocks: self.blocks.update({address: blocks}), time.monotonic)

    def stream(self, ports, address="127.0.0.1:8000"):
        self.streams.keep({address: (KEY, ports)})
        return self.streams._streams[address][1]

    def state(self):
        [(_, state)] = self.streams.states()
        return state


@pytest.fixture
async def world():
    world = World()
    yield world
    world.streams.close()


@pytest.fixture
async def raw():
    """A PUB socket that sends what it is told to."""
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.bind("tcp://127.0.0.1:*")
    yield socket
    context.destroy(linger=0)


def lose(stream):
    """Loses the next message."""

    def came(number, content):
        if vars(stream).pop("_came", None) is None:  # another one in the same turn
            stream._came(number, content)

    stream._came = came


@pytest.fixture
async def replaying():
    """A ROUTER socket that answers requests for missed batches with what it is told to."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind("tcp://127.0.0.1:*")
    yield socket
    context.destroy(linger=0)


async def subscribed(publisher, stream):
    """Publishes until the stream gets it: a subscription takes a while."""

    def got():
        publisher.publish([stored(FIRST)])
        return ONE in stream.blocks

    await until(got, "the first events")


async def test_a_stream_knows_the_blocks_of_its_engine_until_it_is_cut_and_of_the_next_one_at_its_place(world):
    publisher, ports = opened()
    with contextlib.closing(publisher):
        stream = world.stream(ports)
        assert world.state() == "disconnected"
        await subscribed(publisher, stream)
        assert world.state() == "unproven"
        publisher.publish([stored(SECOND, FIRST)])
        await until(lambda: TWO in stream.blocks, "the second block")
        stream.blocks.told([ONE, TWO], time.monotonic(), time.monotonic())
        assert world.state() == "exact"
        publisher.publish([BlocksRemoved(SECOND)])
        await until(lambda: TWO not in stream.blocks, "the loss of the second block")
        publisher.started(4)
        await until(lambda: not len(stream.blocks), "an empty cache")
    await until(lambda: world.state() == "disconnected", "the end of the engine")
    assert not len(stream.blocks)
    publisher, _ = opened(ports.port, ports.replay_port)
    with contextlib.closing(publisher):
        await subscribed(publisher, stream)
        assert world.state() == "unproven"


async def test_batches_that_were_missed_are_replayed(world):
    publisher, ports = opened()
    with contextlib.closing(publisher):
        stream = world.stream(ports)
        await subscribed(publisher, stream)
        publisher.publish([stored(SECOND, FIRST)])
        await until(lambda: TWO in stream.blocks, "the second block")
        lose(stream)
        publisher.publish([BlocksRemoved(SECOND)])
        await until(lambda: "_came" not in vars(stream), "the loss of a message")
        assert TWO in stream.blocks
        publisher.publish([])
        await until(lambda: TWO not in stream.blocks, "the loss of the second block")
        assert ONE in stream.blocks


async def test_where_missed_batches_are_not_kept_nothing_that_may_be_lost_is_known(world):
    publisher, ports = opened(buffer_steps=1)
    with contextlib.closing(publisher):
        stream = world.stream(ports)
        await subscribed(publisher, stream)
        lose(stream)
        publisher.publish([BlocksRemoved(FIRST)])
        await until(lambda: "_came" not in vars(stream), "the loss of a message")
        publisher.publish([stored(SECOND)])
        await until(lambda: TWO in stream.blocks, "the batch after the lost ones")
        assert ONE not in stream.blocks


@pytest.mark.parametrize("replays", [False, True])
async def test_a_gap_that_nothing_fills_is_the_end_of_what_is_known(world, raw, monkeypatch, replays):
    monkeypatch.setattr(event_stream, "REPLAY_S", 0.05)
    stream = world.stream(KvEventPorts(port_of(raw), port_of(raw) + 1 if replays else None))

    def send(number, events):
        raw.send_multipart([b"", number.to_bytes(8, "big"), wire.encode(events, 4, 0.0)])

    def first():
        send(7, [stored(FIRST)])
        return ONE in stream.blocks

    await until(first, "the first events")
    send(9, [stored(SECOND)])
    await until(lambda: TWO in stream.blocks, "the events after the gap")
    assert ONE not in stream.blocks
    send(9, [stored(FIRST)])  # again
    send(10, [BlocksRemoved(SECOND)])
    await until(lambda: TWO not in stream.blocks, "the events after those")
    assert ONE not in stream.blocks


async def missed(stream, raw, replaying, batches):
    """Sends batches with a gap between them, and the missing ones when the stream asks for them."""

    def sent():
        raw.send_multipart([b"", bytes(8), wire.cleared(0.0)])
        return stream._next == 1

    await until(sent, "the first batch")
    raw.send_multipart([b"", (2**32).to_bytes(8, "big"), wire.cleared(0.0)])
    await until(lambda: replaying.poll(0), "a request for the missing ones")
    peer, *_ = replaying.recv_multipart()
    for number, content in enumerate(batches, 1):
        replaying.send_multipart([peer, b"", number.to_bytes(8, "big"), content])


async def test_missed_batches_are_read_few_at_a_turn_of_the_loop(world, raw, replaying, monkeypatch):
    monkeypatch.setattr(event_stream, "MAX_BYTES_PER_TURN", 1)
    monkeypatch.setattr(event_stream, "REPLAY_S", 60.0)
    stream = world.stream(KvEventPorts(port_of(raw), port_of(replaying)))
    turn, loop, read_in = 0, asyncio.get_running_loop(), []

    def next_turn():
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    stream._replayed = lambda number, content: read_in.append(turn)
    next_turn()
    await missed(stream, raw, replaying, [wire.cleared(0.0)] * 100)
    await until(lambda: len(read_in) == 100, "all of them")
    assert max(Counter(read_in).values()) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_of_a_stream_runs_once_it_is_closed_or_has_failed(world, raw, replaying, monkeypatch, fails):
    monkeypatch.setattr(event_stream, "MAX_BYTES_PER_TURN", 1)
    stream = world.stream(KvEventPorts(port_of(raw), port_of(replaying)))
    ran, loop = [], stream._loop

    def call_soon(callback, *arguments):
        return loop.call_soon(lambda: ran.append(stream._events) or callback(*arguments))

    others = {name: getattr(loop, name) for name in ("add_reader", "remove_reader", "call_later")}
    stream._loop = SimpleNamespace(call_soon=call_soon, **others)
    stream._replayed = lambda number, content: apply(b"no batch", stream.blocks, 0.0) if fails else stream.close()
    await missed(stream, raw, replaying, [wire.cleared(0.0)] * 10)
    await until(lambda: stream._events is None, "the end of the stream")
    for _ in range(5):
        await asyncio.sleep(0)
    assert None not in ran


def stores(names):
    return {"type": "BlockStored", "block_hashes": names, "parent_block_hash": None}


def message(*events):
    return [b"", bytes(8), msgspec.msgpack.encode([0.0, events])]


HOSTILE = {
    "unreadable": [
        [b"", bytes(8), b"no batch"],
        message(stores([-1])),
        message(stores([2**64 - 1, b"x"])),
        message({"type": "AllBlocksCleared", "group_idx": 1}),
        message({"type": "Unknown"}),
        [b"", b"short", wire.cleared(0.0)],
        [bytes(8), wire.cleared(0.0)],
        [b""] * 9,
    ],
    "blocks": [message(stores([*range(5000)]))],
    "rate": [[b"", bytes(8), bytes(2**19)]],
}


@pytest.mark.parametrize(
    ("state", "frames"), [(state, each) for state, messages in HOSTILE.items() for each in messages]
)
async def test_a_hostile_engine_is_approximated_and_others_are_not(world, raw, monkeypatch, state, frames):
    monkeypatch.setattr("inflight_gateway.pick.blocks.MOST_HELD", 4096)
    if state == "rate":
        monkeypatch.setattr(event_stream, "BURST_BYTES", 2**18)
        monkeypatch.setattr(event_stream, "MAX_BYTES_PER_SECOND", 1)
    publisher, ports = opened()
    other = (KEY, ports)
    with contextlib.closing(publisher):
        world.streams.keep({"127.0.0.1:1": (KEY, KvEventPorts(port_of(raw))), "127.0.0.1:2": other})
        good = world.streams._streams["127.0.0.1:2"][1]

        def sent():
            raw.send_multipart(frames)
            return world.streams.states().get((KEY, state))

        await until(sent, state)
        assert not len(world.blocks["127.0.0.1:1"])
        await subscribed(publisher, good)


async def test_a_message_of_any_size_takes_no_memory(world, raw):
    stream = world.stream(KvEventPorts(port_of(raw)))
    await until(lambda: world.state() == "unproven", "a connection")
    raw.send_multipart([b"", bytes(8), bytes(2 * event_stream.MAX_MESSAGE_BYTES)])
    await until(lambda: world.state() == "disconnected", "the end of the connection")
    assert not len(stream.blocks)


async def test_engines_beyond_the_most_streams_are_approximated_until_there_is_room(world, monkeypatch):
    monkeypatch.setattr(event_streams, "MOST_STREAMS", 2)
    ports = KvEventPorts(9, None)
    engines = {f"127.0.0.1:{number}": (KEY, ports) for number in range(3)}
    world.streams.keep(engines)
    assert world.streams.states() == {(KEY, "disconnected"): 2, (KEY, "streams"): 1}
    engines.pop("127.0.0.1:0")
    world.streams.keep(engines)
    assert world.streams.states() == {(KEY, "disconnected"): 2}
    assert world.blocks["127.0.0.1:0"] is None
    assert world.blocks["127.0.0.1:2"] is not None


async def test_a_stream_that_was_closed_for_its_engines_faults_is_opened_again(world, raw, monkeypatch):
    monkeypatch.setattr(event_stream, "AGAIN_S", 0.05)
    stream = world.stream(KvEventPorts(port_of(raw)))

    def sent(*frames):
        raw.send_multipart([b"", bytes(8), *frames])
        return True

    await until(lambda: sent(b"no batch") and world.state() == "unreadable", "the end of the stream")
    await until(lambda: sent(wire.encode([stored(FIRST)], 4, 0.0)) and ONE in stream.blocks, "another stream")


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(["store", "store", "remove", "clear", "lose", "restart"]), min_size=1, max_size=30))
def test_after_losses_gaps_and_restarts_a_stream_knows_what_its_engine_holds(actions):
    asyncio.run(_follow(actions))


async def _follow(actions):
    world = World()
    publisher, ports = opened()
    stream = world.stream(ports)
    held = set()
    try:
        await subscribed(publisher, stream)
        publisher.started(4)
        for number, action in enumerate(actions, 1):
            block = number.to_bytes(16, "big")
            if action == "store":
                publisher.publish([stored(block)])
                held.add(block)
            elif action == "remove" and held:
                publisher.publish([BlocksRemoved(held.pop())])
            elif action == "clear":
                publisher.started(4)
                held.clear()
            elif action == "lose":
                lose(stream)
            elif action == "restart":
                publisher.close()
                await until(lambda: stream.state == "disconnected", "the end of the engine")
                publisher, _ = opened(ports.port, ports.replay_port)
                held.clear()
                await subscribed(publisher, stream)
                publisher.started(4)
        wanted = {wire.short(each)[0] for each in held}

        def equal():
            publisher.publish([])
            return {*stream.blocks._media.get("GPU", ())} == wanted

        await until(equal, "all of it")
    finally:
        publisher.close()
        world.streams.close()

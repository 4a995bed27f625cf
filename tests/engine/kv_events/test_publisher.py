"""The publisher on real sockets: numbers, gaps, replays, and what a consumer knows in the end."""

import contextlib
import os
import socket
import tempfile
import threading

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.block_events import BlocksRemoved, BlocksStored
from inflight_engine.server.kv_events import wire
from inflight_engine.server.kv_events.publisher import KVEventPublisher
from inflight_engine.server.settings.kv_events import KVEventsConfig
from tests.engine.kv_events.consumer import Consumer, findable, short
from tests.engine.scheduling.workload import Workload

FIRST, SECOND = bytes(range(16)), bytes(range(16, 32))


def stored(block_hash, parent=b""):
    return BlocksStored(block_hash, parent, b"", bytes(16))


@contextlib.contextmanager
def opening(folder, **changes):
    """A publisher with one consumer. `changes`: of the configuration."""
    config = KVEventsConfig(endpoint=f"ipc://{folder}/events", replay_endpoint=f"ipc://{folder}/replay", **changes)
    publisher = KVEventPublisher(config)
    with contextlib.closing(publisher), contextlib.closing(Consumer(config)) as consumer:
        yield publisher, consumer


@pytest.fixture
def opened(tmp_path):
    """Opens a publisher with one consumer; keyword arguments change the configuration."""
    with contextlib.ExitStack() as stack:
        yield lambda **changes: stack.enter_context(opening(tmp_path, **changes))


@pytest.fixture
def held(monkeypatch):
    """Two events: the publisher's thread sets the first when it encodes that nothing is cached any more, and waits for
    the second."""
    taken, going = threading.Event(), threading.Event()
    encode = wire.cleared

    def wait(now):
        taken.set()
        going.wait(20)
        return encode(now)

    monkeypatch.setattr(wire, "cleared", wait)
    yield taken, going
    going.set()


def subscribed(publisher, consumer):
    """Publishes until the consumer gets it: a subscription takes a while."""
    while not consumer.receive():
        publisher.started(4)
        consumer.catch_up()
    while consumer.receive():
        pass


def test_subscribers_get_each_batch_under_the_next_number(opened):
    publisher, consumer = opened()
    subscribed(publisher, consumer)
    first = consumer.next
    publisher.publish([stored(FIRST), stored(SECOND, FIRST)])
    publisher.publish([BlocksRemoved(SECOND)])
    assert consumer.receive(wait=True)
    assert consumer.hashes == {short(FIRST), short(SECOND)}
    assert consumer.receive(wait=True)
    assert (consumer.hashes, consumer.next) == ({short(FIRST)}, first + 2)


def test_a_subscriber_of_the_topic_gets_the_batches(opened):
    publisher, consumer = opened(topic="kv@pod-1@model")
    subscribed(publisher, consumer)
    assert consumer.topic == b"kv@pod-1@model"


def test_a_new_engine_process_begins_with_an_empty_cache_and_the_numbers_go_on(opened):
    publisher, consumer = opened()
    publisher.started(4)
    publisher.publish([stored(FIRST)])
    publisher.started(4)
    publisher.publish([stored(SECOND)])
    consumer.catch_up()
    assert (consumer.hashes, consumer.next) == ({short(SECOND)}, 4)


def test_batches_that_are_not_kept_any_more_are_a_gap(opened):
    publisher, consumer = opened(buffer_steps=2)
    publisher.started(4)
    for _ in range(5):
        publisher.publish([stored(FIRST)])
    consumer.catch_up()
    assert (consumer.gaps, consumer.next) == ([0, 1, 2, 3], 6)


def test_batches_that_are_dropped_are_a_gap_and_then_nothing_is_known_that_may_be_lost(opened, held, caplog):
    publisher, consumer = opened(max_queue_size=3)
    taken, going = held
    publisher.started(4)
    assert taken.wait(20)
    for _ in range(20):
        publisher.publish([stored(FIRST)])
    assert "KV cache events are dropped" in caplog.text
    going.set()
    consumer.catch_up()
    publisher.publish([stored(SECOND)])
    consumer.catch_up()
    assert (publisher.num_dropped, consumer.gaps) == (17, [*range(4, 21)])
    assert consumer.events[-2] == {"type": "AllBlocksCleared"}
    assert consumer.hashes == {short(SECOND)}


@pytest.mark.parametrize("request_", [[b"", b"short"], [b"x"], [b"", bytes(8), b""], [b"", bytes(9)]])
def test_a_replay_that_is_not_understood_is_not_answered_and_harms_nobody(opened, request_):
    publisher, consumer = opened()
    publisher.started(4)
    consumer._replay.send_multipart(request_)
    consumer.catch_up()
    assert consumer.next == 1


def test_a_message_of_any_size_does_not_reach_the_publisher(opened):
    publisher, consumer = opened()
    publisher.started(4)
    consumer._replay.send_multipart([b"", bytes(1 << 20)])
    assert not consumer._replay.poll(200)
    with contextlib.closing(consumer._open(zmq.DEALER, publisher._replaying.last_endpoint.decode())) as other:
        other.send_multipart([b"", bytes(8)])
        assert other.poll(20_000)


def test_a_publisher_whose_thread_ends_before_it_is_woken_closes_all_the_same(monkeypatch):
    """The thread may see the end while it is at work: the number of its descriptor may be that of another file then."""
    publisher = KVEventPublisher(KVEventsConfig(endpoint="tcp://127.0.0.1:*"))
    wake = os.eventfd_write

    def late(descriptor, number):
        wake(descriptor, number)
        publisher._thread.join(10)
        wake(descriptor, number)

    monkeypatch.setattr(os, "eventfd_write", late)
    publisher.close()


def test_an_endpoint_that_is_taken_is_refused_by_name():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"cannot be sent on {endpoint}: Address already in use"):
            KVEventPublisher(KVEventsConfig(replay_endpoint=endpoint, endpoint="tcp://127.0.0.1:9"))


@pytest.mark.parametrize("endpoint", ["", "5557", "tcp://*", "http://*:5557", "ipc:///nowhere/events"])
def test_an_endpoint_that_does_not_exist_is_refused_by_name(endpoint):
    with pytest.raises(ValueError, match="KV cache events cannot be sent on"):
        KVEventPublisher(KVEventsConfig(endpoint=endpoint))


def knows(consumer, scheduler):
    assert consumer.hashes == findable(scheduler.running.pool)
    tier = scheduler.offload._tier
    assert consumer.in_tier == (set() if tier is None else findable(tier._pool))


@given(
    seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=2),
    rounds=st.lists(st.sampled_from(["receive", "lose", "catch up"]), min_size=1, max_size=8),
)
@settings(max_examples=10, deadline=None)
def test_after_losses_replays_and_restarts_a_consumer_knows_what_the_engine_can_find(seeds, rounds):
    """Each seed is a configuration and a load of preemptions, evictions, failing steps, in an engine process of its
    own."""
    with tempfile.TemporaryDirectory() as folder, opening(folder) as (publisher, consumer):
        for seed in seeds:
            events = []
            workload = Workload(seed, events=events, prefix_caching=True)
            workload.load = 0.8
            publisher.started(workload.driver.config.block_size)
            for what in rounds:
                for _ in range(10):
                    workload.step()
                    if events:
                        publisher.publish(events.copy())
                        events.clear()
                match what:
                    case "receive":
                        while consumer.receive():
                            pass
                    case "lose":
                        consumer.lose()
                    case "catch up":
                        consumer.catch_up()
                        knows(consumer, workload.driver.scheduler)
        consumer.catch_up()
        knows(consumer, workload.driver.scheduler)
        assert consumer.gaps == []

"""KV cache events by gRPC: a real publisher, and real clients of the server."""

import asyncio
import contextlib
import time
from collections import deque

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2

from inflight_engine.block_events import BlocksRemoved, BlocksStored
from inflight_engine.cache.prefix import root_hash
from inflight_engine.server.grpc import kv_events
from inflight_engine.server.kv_events import wire
from inflight_engine.server.kv_events.publisher import KVEventPublisher
from inflight_engine.server.settings.kv_events import KVEventsConfig
from tests.engine.server.fake_engine import until
from tests.engine.server.test_grpc import failure, running

ROOT = root_hash("", "salt")
FIRST, SECOND = b"\xff" * 16, bytes(range(16))


def signed(block_hash):
    return int.from_bytes(block_hash[-8:], "big", signed=True)


@contextlib.asynccontextmanager
async def published(**changes):
    """A server, its publisher, and a client."""
    config = KVEventsConfig(endpoint="tcp://127.0.0.1:*", **changes)
    with contextlib.closing(KVEventPublisher(config)) as publisher:
        async with running() as fake:
            fake.service.session.kv_events = publisher
            publisher.started(2)
            yield fake, publisher


def subscribed(fake, first=0):
    return fake.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=first))


async def take(call, count):
    async with asyncio.timeout(20):
        return [await call.read() for _ in range(count)]


async def test_a_subscriber_gets_all_events_from_the_first_one_on_under_their_numbers():
    async with published() as (fake, publisher):
        publisher.publish(
            [BlocksStored(FIRST + SECOND, b"", ROOT, bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]))]
        )
        call = subscribed(fake)
        cleared, stored = await take(call, 2)
        assert (cleared.sequence_number, cleared.events[0].WhichOneof("data")) == (0, "cleared")
        assert stored.sequence_number == 1
        assert abs(stored.timestamp - time.time()) < 60
        event = stored.events[0].stored
        assert [each.block_hash for each in event.blocks] == [signed(FIRST), signed(SECOND)]
        assert [list(each.token_ids) for each in event.blocks] == [[1, 2], [3, 4]]
        assert [[key.text for key in each.extra_keys] for each in event.blocks] == [[ROOT.hex()], []]
        assert not event.HasField("parent_block_hash")
        assert (event.medium, event.tier, event.blocks[0].block_size) == ("GPU", common_pb2.KV_CACHE_TIER_DEVICE, 2)
        publisher.publish([BlocksStored(FIRST, SECOND, b"", bytes(8)), BlocksRemoved(SECOND, "CPU")])
        (last,) = await take(call, 1)
        assert last.events[0].stored.parent_block_hash == signed(SECOND)
        assert list(last.events[1].removed.block_hashes) == [signed(SECOND)]
        assert last.events[1].removed.tier == common_pb2.KV_CACHE_TIER_HOST
        assert [event.event_id for each in (cleared, stored, last) for event in each.events] == [1, 2, 3, 4]


async def test_a_subscriber_goes_on_from_a_number_and_without_all_batches_with_the_next_one():
    async with published(buffer_steps=4) as (fake, publisher):
        for _ in range(9):
            publisher.publish([BlocksRemoved(FIRST)])
        call = subscribed(fake, 7)
        assert [each.sequence_number for each in await take(call, 3)] == [7, 8, 9]
        fresh = subscribed(fake)

        async def first():
            publisher.publish([])
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(reading), 0.05)

        reading = asyncio.ensure_future(fresh.read())
        found = None
        while found is None:
            found = await first()
        assert found.sequence_number > 9


async def test_a_subscription_ends_with_its_client():
    async with published() as (fake, publisher):
        call = subscribed(fake)
        await take(call, 1)
        await until(lambda: len(publisher._subscribers) == 1)  # what it has sent before goes out first
        call.cancel()
        await until(lambda: not publisher._subscribers)


async def test_a_subscriber_that_does_not_read_is_ended_and_others_are_not(monkeypatch):
    monkeypatch.setattr(kv_events, "MAX_WAITING_BYTES", 100_000)
    async with published() as (fake, publisher):
        publisher.started(10_000)
        slow, good = subscribed(fake), subscribed(fake)
        await take(good, 1)
        await take(slow, 1)
        await take(good, 1)
        for number in range(2, 2000):  # more than the connection takes
            publisher.publish([BlocksStored(FIRST, b"", b"", bytes(40_000))])
            assert [each.sequence_number for each in await take(good, 1)] == [number]
            if len(publisher._subscribers) == 1:
                break
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await take(slow, 2000)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "subscribe again" in error.value.details()


@pytest.mark.parametrize("flag", [{"trust_tenant_header": True}])
async def test_events_are_not_for_tenants(flag):
    config = KVEventsConfig(endpoint="tcp://127.0.0.1:*")
    with contextlib.closing(KVEventPublisher(config)) as publisher:
        async with running(**flag) as fake:
            fake.service.session.kv_events = publisher
            assert (await failure(subscribed(fake))).code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_publisher_counts_all_batches_that_it_drops(monkeypatch):
    with contextlib.closing(
        KVEventPublisher(KVEventsConfig(endpoint="tcp://127.0.0.1:*", max_queue_size=1))
    ) as publisher:
        monkeypatch.setattr(publisher, "_waiting", deque([None]))
        for _ in range(3):
            publisher.publish([])
        assert publisher.num_dropped == 3


def test_batches_are_read_as_they_are_written():
    content = wire.encode([BlocksStored(FIRST, b"", ROOT, bytes(8)), BlocksRemoved(FIRST)], 2, 1.0)
    assert wire.decode(content).events == [
        wire._event(BlocksStored(FIRST, b"", ROOT, bytes(8)), 2),
        wire._event(BlocksRemoved(FIRST), 2),
    ]

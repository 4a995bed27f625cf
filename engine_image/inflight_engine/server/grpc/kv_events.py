"""KV cache events as messages of gRPC: the batches of the publisher on ZeroMQ, under its numbers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from smg_grpc_proto.generated import common_pb2

from inflight_contract.errors import ApiError
from inflight_engine.server.kv_events import wire
from inflight_engine.server.kv_events.publisher import KVEventPublisher

MAX_WAITING_BYTES = 16 * 2**20
"""Most bytes of batches that wait for one subscriber; a subscription with more ends."""

_BATCH_BYTES = 256
"""Bytes that a batch counts in addition."""

_SIGN = 2**63


class Subscription:
    """The batches for one subscriber.

    Args:
        first: number of the first one, as far as it is kept; 0: all if all are kept, else those to come.
    """

    def __init__(self, publisher: KVEventPublisher, first: int) -> None:
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._late = self._ended = False
        self._deliver = self._delivered  # one object, which the publisher knows
        publisher.subscribe(first, self._deliver)

    def close(self) -> None:
        """End it."""
        self._ended = True
        self._publisher.unsubscribe(self._deliver)

    async def messages(self) -> AsyncIterator[common_pb2.KvEventBatch]:
        """The batches, as they come.

        Raises:
            ApiError: 503, the subscriber is too slow.
        """
        num_events = 0
        while True:
            while not self._waiting:
                self._news.clear()
                await self._news.wait()
            if self._late:
                raise ApiError(
                    503,
                    f"more than {MAX_WAITING_BYTES} bytes of events wait for this subscriber: subscribe again from the"
                    " number after the last one",
                    code="overloaded",
                )
            number, content = self._waiting.popleft()
            self._waiting_bytes -= len(content) + _BATCH_BYTES
            batch = _message(number, content, num_events)
            num_events += len(batch.events)
            yield batch

    def _delivered(self, number: int, content: bytes) -> None:
        if self._ended:  # before the publisher knew of it
            self._publisher.unsubscribe(self._deliver)
            return
        try:
            self._loop.call_soon_threadsafe(self._take, number, content)
        except RuntimeError:  # the server has ended
            self.close()

    def _take(self, number: int, content: bytes) -> None:
        if self._late:
            return
        self._waiting.append((number, content))
        self._waiting_bytes += len(content) + _BATCH_BYTES
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self._late = True
            self._waiting = deque(((number, b""),))
            self.close()
        self._news.set()


def _message(number: int, content: bytes, num_events: int) -> common_pb2.KvEventBatch:
    """A batch. `num_events`: events before it."""
    batch = wire.decode(content)
    events = [
        common_pb2.KvCacheEvent(event_id=place, **_event(event))
        for place, event in enumerate(batch.events, num_events + 1)
    ]
    return common_pb2.KvEventBatch(
        sequence_number=number, timestamp=batch.ts, events=events, dp_rank=batch.data_parallel_rank
    )


def _event(event: wire.BlockStored | wire.BlockRemoved | wire.AllBlocksCleared) -> dict[str, Any]:
    match event:
        case wire.BlockStored():
            return {"stored": _stored(event)}
        case wire.BlockRemoved():
            hashes = [_signed(each) for each in event.block_hashes]
            return {"removed": common_pb2.KvBlocksRemoved(block_hashes=hashes, **_place(event))}
        case wire.AllBlocksCleared():
            return {"cleared": common_pb2.KvCacheCleared()}


def _stored(event: wire.BlockStored) -> common_pb2.KvBlocksStored:
    size, keys = event.block_size, event.extra_keys or [None] * len(event.block_hashes)
    blocks = [
        common_pb2.KvBlock(
            block_hash=_signed(block_hash),
            token_ids=event.token_ids[place * size : (place + 1) * size],
            block_size=size,
            extra_keys=[common_pb2.KvBlockExtraKey(text=each) for each in key or ()],
        )
        for place, (block_hash, key) in enumerate(zip(event.block_hashes, keys, strict=True))
    ]
    parent = event.parent_block_hash
    return common_pb2.KvBlocksStored(
        blocks=blocks,
        parent_block_hash=None if parent is None else _signed(parent),
        kv_cache_spec_kind=event.kv_cache_spec_kind,
        **_place(event),
    )


def _place(event: wire.BlockStored | wire.BlockRemoved) -> dict[str, Any]:
    tier = _TIERS.get(event.medium, common_pb2.KV_CACHE_TIER_UNSPECIFIED)
    return {"medium": event.medium, "tier": tier, "group_idx": event.group_idx}


_TIERS = {
    "GPU": common_pb2.KV_CACHE_TIER_DEVICE,
    "CPU": common_pb2.KV_CACHE_TIER_HOST,
    "STORAGE": common_pb2.KV_CACHE_TIER_DISK,
    "DISK": common_pb2.KV_CACHE_TIER_DISK,
}
"""Tiers by the names of media."""


def _signed(block_hash: int) -> int:
    return block_hash - 2 * _SIGN if block_hash >= _SIGN else block_hash

"""Streams of KV cache events, of the engines of the services that this picker owns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import zmq

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.engines.event_stream import EventStream
from inflight_gateway.pick.blocks import BlockMemory, ReplicaBlocks
from inflight_gateway.types import KvEventPorts

MOST_STREAMS = 512
"""Most engines whose events are read; further ones are approximated."""

_SOCKETS_OF_STREAM = 4

REMEMBER_S = 5.0
"""Seconds for which removed blocks are remembered at least: news of a prompt take less."""


Publisher: TypeAlias = tuple[ServiceKey, KvEventPorts]
"""The service of an engine, and its ports."""


class EventStreams:
    """Keeps a stream for each engine. Create it in the event loop.

    Args:
        publishes: gets the blocks of an engine, or None when its stream ends: `Ledger.publishes`.
        clock: seconds, monotonic.
    """

    def __init__(
        self, publishes: Callable[[ServiceKey, str, ReplicaBlocks | None], None], clock: Callable[[], float]
    ) -> None:
        self._publishes = publishes
        self._clock = clock
        self._memory = BlockMemory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _SOCKETS_OF_STREAM * MOST_STREAMS)
        self._streams: dict[str, tuple[Publisher, EventStream]] = {}
        self._unread: Counter[ServiceKey] = Counter()
        self._forget_at = 0.0

    def keep(self, publishers: Mapping[str, Publisher]) -> None:
        """Sets the engines whose events are read, by address. Called about once a second."""
        for address, (publisher, stream) in tuple(self._streams.items()):
            if publishers.get(address) != publisher:
                del self._streams[address]
                stream.close()
                self._publishes(publisher[0], address, None)
        self._unread.clear()
        for address, publisher in publishers.items():
            if address in self._streams:
                continue
            if len(self._streams) >= MOST_STREAMS:
                self._unread[publisher[0]] += 1
                continue
            blocks, host = ReplicaBlocks(self._memory), address.rpartition(":")[0]
            service, ports = publisher
            self._streams[address] = publisher, EventStream(self._context, host, ports, blocks, self._clock)
            self._publishes(service, address, blocks)
        now = self._clock()
        if now >= self._forget_at:
            self._forget_at = now + REMEMBER_S
            for _, stream in self._streams.values():
                stream.blocks.forget_removed()

    def states(self) -> dict[tuple[ServiceKey, str], int]:
        """Returns the number of engines by service and state, see `EventStream.state`. `streams`: too many."""
        states = Counter((service, stream.state) for (service, _), stream in self._streams.values())
        states.update({(service, "streams"): number for service, number in self._unread.items()})
        return dict(states)

    def close(self) -> None:
        """Closes all streams."""
        self.keep({})
        self._context.destroy(linger=0)

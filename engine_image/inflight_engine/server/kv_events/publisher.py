"""Publishes batches of KV cache events, and sends past ones again to who asks for them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import zmq

from inflight_engine.block_events import BlockEvent
from inflight_engine.server.kv_events import wire
from inflight_engine.server.settings.kv_events import KVEventsConfig

log = logging.getLogger(__name__)

NUMBER_BYTES = 8
END_OF_REPLAY = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
"""Number of the message after the last batch of a replay."""

_LONGEST_REQUEST = 1024
"""Bytes that a client may send in one frame: a subscription, or the number that a replay begins with."""

_CLOSE_SECONDS = 1.0

Deliver: TypeAlias = Callable[[int, bytes], None]


class _Subscriber(NamedTuple):
    """A subscription that begins with a batch. Attributes: first: its number."""

    first: int
    deliver: Deliver


class KVEventPublisher:
    """Each batch gets the next number and goes to all subscribers as topic, number (8 bytes, big endian) and content.
    The numbers begin at 0 with this process, and go on when its engine process is replaced.

    Nobody is waited for. A batch that finds `max_queue_size` others waiting is dropped, and a subscriber to whom `hwm`
    others are still under way does not get it; either leaves a gap in the numbers. Batches that were dropped cannot be
    replayed, so AllBlocksCleared follows them: consumers then know of too few blocks, and of none that is lost.

    Sockets and encoding are a thread's own; no method but `close` waits for it.

    Attributes:
        num_dropped: batches that were dropped since the start.

    Raises:
        ValueError: an endpoint cannot be used; the message names it.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        self._topic = config.topic.encode()
        self._most_waiting = config.max_queue_size
        self._block_size = 0
        self.num_dropped = 0
        self._num_dropped = 0
        """Batches since the latest one that was not."""
        self._waiting: deque[tuple[int, Callable[[], bytes]] | _Subscriber | None] = deque()
        """Batches, each with the number of those that were dropped before it, and its encoder; new subscribers; None:
        no more follow."""
        self._subscribers: dict[Deliver, None] = {}
        self._number = 0
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._context = zmq.Context()
        self._replaying: zmq.Socket[bytes] | None = None
        try:
            self._publishing = self._open(zmq.PUB, config.endpoint, config.hwm)
            if config.replay_endpoint is not None:
                # A ROUTER drops what its queue for a client does not hold, so that is a whole replay.
                self._replaying = self._open(zmq.ROUTER, config.replay_endpoint, config.buffer_steps + 1)
        except ValueError:
            self._context.destroy(linger=0)
            raise
        self._woken = os.eventfd(0, os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def started(self, block_size: int) -> None:
        """Note that an engine process begins with an empty cache; its blocks are of so many tokens."""
        self._block_size = block_size
        self._put(partial(wire.cleared, time.time()))

    def publish(self, events: Sequence[BlockEvent]) -> None:
        """Queue a batch."""
        self._put(partial(wire.encode, events, self._block_size, time.time()))

    def subscribe(self, first: int, deliver: Deliver) -> None:
        """Call `deliver` with the number and the content of each batch, in the publisher's thread: of those that are
        kept from number `first` on, then of all that follow. 0: of all that were published, if they are kept. It must
        not wait or raise."""
        self._waiting.append(_Subscriber(first, deliver))
        os.eventfd_write(self._woken, 1)

    def unsubscribe(self, deliver: Deliver) -> None:
        """End a subscription that has begun; a call of `deliver` may come to its end."""
        self._subscribers.pop(deliver, None)

    def close(self) -> None:
        """Publish what waits, as far as that takes little time, and free the sockets."""
        self._waiting.append(None)
        os.eventfd_write(self._woken, 1)
        self._thread.join(_CLOSE_SECONDS)
        if not self._thread.is_alive():
            os.close(self._woken)

    def _put(self, encode: Callable[[], bytes]) -> None:
        if len(self._waiting) >= self._most_waiting:
            if not self._num_dropped:
                log.warning("KV cache events are dropped: %d batches wait to be published", len(self._waiting))
            self._num_dropped += 1
            self.num_dropped += 1
            return
        if self._num_dropped:
            self._waiting.append((self._num_dropped, partial(wire.cleared, time.time())))
            self._num_dropped = 0
        self._waiting.append((0, encode))
        os.eventfd_write(self._woken, 1)

    def _open(self, kind: zmq.SocketType, endpoint: str, most_queued: int) -> zmq.Socket[bytes]:
        """Bind or connect a socket, as vLLM does: a wildcard is bound."""
        opened = self._context.socket(kind)
        opened.sndhwm, opened.linger, opened.maxmsgsize = most_queued, 0, _LONGEST_REQUEST
        opened.ipv6 = True
        binds = "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
        try:
            (opened.bind if binds or kind == zmq.ROUTER else opened.connect)(endpoint)
        except zmq.ZMQError as error:
            raise ValueError(f"KV cache events cannot be sent on {endpoint}: {error.strerror}") from None
        return opened

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._replaying is not None:
            poller.register(self._replaying, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._woken in ready:
                os.eventfd_read(self._woken)
            if not self._publish_waiting():
                break
            if self._replaying is not None and self._replaying in ready:
                self._replay(self._replaying)
        self._context.destroy(linger=0)

    def _publish_waiting(self) -> bool:
        """Publish all batches that wait. False: there will be no more."""
        while self._waiting:
            item = self._waiting.popleft()
            if item is None:
                return False
            if isinstance(item, _Subscriber):
                self._subscribe(item)
                continue
            num_dropped, encode = item
            number, content = self._number + num_dropped, encode()
            self._number = number + 1
            self._sent.append((number, content))
            self._publishing.send_multipart((self._topic, number.to_bytes(NUMBER_BYTES, "big"), content))
            for deliver in (*self._subscribers,):
                deliver(number, content)
        return True

    def _subscribe(self, one: _Subscriber) -> None:
        if one.first or (self._sent and self._sent[0][0] == 0):
            for number, content in self._sent:
                if number >= one.first:
                    one.deliver(number, content)
        self._subscribers[one.deliver] = None

    def _replay(self, socket: zmq.Socket[bytes]) -> None:
        """Send the batches from the number on that a client asks for, as far as they are kept, then the end."""
        request = socket.recv_multipart()
        if len(request) != 3 or len(request[2]) != NUMBER_BYTES:
            log.warning("a request to replay KV cache events is not understood: %d frames", len(request))
            return
        client, _, start = request
        first = int.from_bytes(start, "big")
        for number, content in self._sent:
            if number >= first:
                head = (client, b"", self._topic, number.to_bytes(NUMBER_BYTES, "big"))
                socket.send_multipart((*head, content))
        socket.send_multipart((client, b"", b"", END_OF_REPLAY, b""))

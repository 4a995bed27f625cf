"""Stream of the KV cache events of one engine: its PUB socket, and its ROUTER socket for batches that were missed.

Engines are not trusted: bytes of a message, messages in memory, and bytes a second are bounded. Where a bound is
exceeded, the stream is closed for `AGAIN_S`, and the engine's cache is approximated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq
from zmq.utils.monitor import parse_monitor_message

from inflight_gateway.engines.kv_events import Unreadable, apply
from inflight_gateway.pick.blocks import ReplicaBlocks, TooManyBlocks
from inflight_gateway.types import KvEventPorts

MAX_MESSAGE_BYTES = 2**20
"""Most bytes of a message: a step that computes 100,000 tokens takes some 500 kB."""

MAX_BYTES_PER_SECOND = 4 * 2**20
BURST_BYTES = 16 * 2**20
"""Most bytes of messages in the long run, and at once. An engine that computes 20,000 tokens a second sends 120 kB."""

MESSAGE_BYTES = 1024
"""Bytes that a message counts in addition: small ones take as much time."""

MAX_QUEUED = 64
"""Most messages that wait to be read."""

MAX_BYTES_PER_TURN = 2**17
"""Bytes of messages after which a socket is read on in the next turn of the event loop: some ms at most."""

REPLAY_S = 2.0
"""Seconds in which missed batches come; after them, what the engine holds is unknown."""

MAX_WAITING_BYTES = 2**20
"""Most bytes of messages that wait for missed ones, and are then applied at once."""

AGAIN_S = 60.0
"""Seconds until a stream that was closed is opened again."""

HEARTBEAT_MS, SILENT_MS = 2_000, 6_000
"""Time between two pings of a connection, and without an answer until it counts as cut."""

_NUMBER_BYTES = 8
_END_OF_REPLAY = b"\xff" * _NUMBER_BYTES
_FEWEST_FRAMES, _MOST_FRAMES = 3, 5


class EventStream:
    """The stream of one engine. Create it in the event loop.

    Args:
        host: of the engine, as in its address.
        blocks: get what the events say.
        clock: seconds, monotonic, as in `ReplicaBlocks`.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        host: str,
        ports: KvEventPorts,
        blocks: ReplicaBlocks,
        clock: Callable[[], float],
    ) -> None:
        self.blocks = blocks
        self._context = context
        self._host, self._ports = host, ports
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connected = False
        self._problem = ""
        self._credit, self._credit_at = float(BURST_BYTES), clock()
        self._next: int | None = None
        """Number of the next batch; None: any."""
        self._replaying: zmq.Socket[bytes] | None = None
        self._replay_timer: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Batches after the missed ones."""
        self._waiting_bytes = 0
        self._again: asyncio.TimerHandle | None = None
        self._reading: asyncio.Handle | None = None
        self._events: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._open()

    @property
    def state(self) -> str:
        """`exact`, or why the cache of the engine is approximated: `disconnected`, `unproven` (no event told of the
        blocks of a prompt yet, or none of the last ones did), `rate`, `blocks` or `unreadable`."""
        if self._problem:
            return self._problem
        if not self._connected:
            return "disconnected"
        return "exact" if self.blocks.exact else "unproven"

    def close(self) -> None:
        """Closes the sockets."""
        for timer in (self._again, self._reading):
            if timer is not None:
                timer.cancel()
        self._again = self._reading = None
        self._end_replay()
        for socket in (self._events, self._monitor):
            if socket is not None:
                self._loop.remove_reader(socket)
        if self._events is not None:
            self._events.disable_monitor()
            self._events.close(linger=0)
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self._events = self._monitor = None
        self._lost()

    def _open(self) -> None:
        self._problem, self._again = "", None
        events = self._events = self._socket(zmq.SUB)
        events.subscribe(b"")
        self._monitor = events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._loop.add_reader(events, self._read_soon)
        self._loop.add_reader(self._monitor, self._read_soon)
        events.connect(f"tcp://{self._host}:{self._ports.port}")
        self._read_soon()

    def _socket(self, kind: zmq.SocketType) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger, socket.ipv6 = 0, True
        socket.rcvhwm, socket.maxmsgsize = MAX_QUEUED, MAX_MESSAGE_BYTES
        socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, SILENT_MS
        socket.connect_timeout = 2_000
        socket.reconnect_ivl, socket.reconnect_ivl_max = 250, 10_000
        return socket

    def _read(self) -> None:
        """Reads what has come. The descriptors tell of changes only, so all of it is read, in several turns."""
        self._reading = None
        # First: a connection that was cut comes before the numbers of the next one.
        self._watch()
        self._receive(self._replaying, self._replayed)
        self._receive(self._events, self._came)

    def _receive(self, socket: zmq.Socket[bytes] | None, take: Callable[[bytes, bytes], None]) -> None:
        """Reads the messages of a socket, some of them in a later turn."""
        left = MAX_BYTES_PER_TURN
        while left > 0:
            if socket is None or socket.closed:
                return
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            size = MESSAGE_BYTES + sum(map(len, frames))
            left -= size
            self._take(frames, size, take)
        self._read_soon()

    def _read_soon(self) -> None:
        if self._reading is None and self._events is not None:
            self._reading = self._loop.call_soon(self._read)

    def _watch(self) -> None:
        while self._monitor is not None:
            try:
                frames = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._connected = parse_monitor_message(frames)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._end_replay()
            self._lost()

    def _lost(self) -> None:
        """Notes that events may be missing that nothing will tell."""
        self._next = None
        self.blocks.close(self._clock())

    def _fail(self, problem: str) -> None:
        self.close()
        self._connected, self._problem = False, problem
        self._again = self._loop.call_later(AGAIN_S, self._open)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Closes the stream if messages are not understood, or there is no room for what they say."""
        try:
            yield
        except Unreadable:
            self._fail("unreadable")
        except TooManyBlocks:
            self._fail("blocks")

    def _take(self, frames: list[bytes], size: int, take: Callable[[bytes, bytes], None]) -> None:
        """Applies a message by its last two frames: number and content."""
        now = self._clock()
        self._credit = min(BURST_BYTES, self._credit + MAX_BYTES_PER_SECOND * (now - self._credit_at))
        self._credit_at = now
        self._credit -= size
        if self._credit < 0:
            self._fail("rate")
            return
        with self._failing():
            if not _FEWEST_FRAMES <= len(frames) <= _MOST_FRAMES or len(frames[-2]) != _NUMBER_BYTES:
                raise Unreadable("no number")
            take(frames[-2], frames[-1])

    def _came(self, number: bytes, content: bytes) -> None:
        value = int.from_bytes(number, "big")
        if self._replaying is not None:
            self._wait(value, content)
        elif self._next is None or value == self._next:
            self._apply(value, content)
        elif value > self._next:
            if self._ports.replay_port is None:
                self._jump(value, content)
            else:
                self._wait(value, content)
                self._replay(self._next)

    def _apply(self, number: int, content: bytes) -> None:
        self._next = number + 1
        apply(content, self.blocks, self._clock())

    def _jump(self, number: int, content: bytes) -> None:
        """Applies a batch after lost ones: what they told was lost may still be known."""
        if self._next is not None and number > self._next:
            self.blocks.clear(self._clock())
        if self._next is None or number >= self._next:
            self._apply(number, content)

    def _wait(self, number: int, content: bytes) -> None:
        self._waiting_bytes += len(content) + MESSAGE_BYTES
        self._waiting.append((number, content))
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self._end_replay(apply_waiting=True)

    # Missed batches.

    def _replay(self, first: int) -> None:
        socket = self._replaying = self._socket(zmq.DEALER)
        socket.connect(f"tcp://{self._host}:{self._ports.replay_port}")
        self._loop.add_reader(socket, self._read_soon)
        self._replay_timer = self._loop.call_later(REPLAY_S, self._end_replay, True)
        socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")], zmq.NOBLOCK)
        self._read_soon()

    def _replayed(self, number: bytes, content: bytes) -> None:
        if number == _END_OF_REPLAY:
            self._end_replay(apply_waiting=True)
        else:
            self._jump(int.from_bytes(number, "big"), content)

    def _end_replay(self, apply_waiting: bool = False) -> None:
        if self._replay_timer is not None:
            self._replay_timer.cancel()
            self._replay_timer = None
        if self._replaying is not None:
            self._loop.remove_reader(self._replaying)
            self._replaying.close(linger=0)
            self._replaying = None
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        if apply_waiting:
            with self._failing():
                for number, content in waiting:
                    self._jump(number, content)

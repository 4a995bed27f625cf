"""The picker's ends of the streams to relays: of its own pod at a UNIX socket, of other pods at a TCP port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.link.known import everything, known
from inflight_gateway.link.ready_pods import ReadyPods
from inflight_gateway.link.signed import MAX_UNPROVEN, Accepting
from inflight_gateway.link.stream import Registry, SignedStream, Stream
from inflight_gateway.link.wire import BEAT_S, MAX_TURNS, Ask, FromPicker, Keys

MAX_UNSENT_BYTES = 64 * 2**20
"""Most bytes that a relay may leave unread; one with more has hung, and its stream is closed."""


class RelayLinks:
    """Streams of relays. Relays of this pod get all that the picker knows, others only answers and the ready pods.

    Args:
        catalog: relays mirror it.
        pods: the ready gateway pods; the pod that owns a service among them answers for it.
        max_unsent_bytes: see `MAX_UNSENT_BYTES`.

    Attributes:
        own, remote: streams of relays of this pod, and of others.
    """

    def __init__(
        self, registry: Registry, catalog: Catalog, pods: ReadyPods, max_unsent_bytes: int = MAX_UNSENT_BYTES
    ) -> None:
        self.own: set[Stream] = set()
        self.remote: set[SignedStream] = set()
        self._registry = registry
        self._catalog = catalog
        self._pods = pods
        self._max_unsent_bytes = max_unsent_bytes
        self._unproven: dict[SignedStream, None] = {}
        self._keys = Keys(None)
        self._gateways = pods.message(0)
        self._servers: list[asyncio.Server] = []
        self._beat: asyncio.TimerHandle | None = None
        catalog.subscribe(self._changed)

    @property
    def ready(self) -> bool:
        """True if relays of this pod are connected, and have read all that is known."""
        return bool(self.own) and all(stream.welcomed() for stream in self.own)

    async def serve(self, socket: Path) -> None:
        """Listens for relays of this pod until closed.

        Raises:
            OSError: it cannot listen there.
        """
        _make_room(socket)
        loop = asyncio.get_running_loop()
        self._servers.append(
            await loop.create_unix_server(lambda: Stream(self, self._registry, self._max_unsent_bytes), str(socket))
        )
        self._send_beats()

    async def listen(self, host: str | None, port: int) -> int:
        """Listens for relays of other pods until closed; returns the port: a free one for 0.

        Args:
            host: address to listen on; None: all.

        Raises:
            OSError: it cannot listen there.
        """
        server = await asyncio.get_running_loop().create_server(self._accept, host, port, reuse_address=True)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Closes sockets and all streams. Their requests do not end: relays report them to the next picker."""
        for server in self._servers:
            server.close()
        if self._beat is not None:
            self._beat.cancel()
        streams = (*self.own, *self.remote, *self._unproven)
        self.own.clear()
        self.remote.clear()
        for stream in streams:
            stream.close()

    def set_keys(self, keys: Keys) -> None:
        """Sends the gateway keys to the relays of this pod, if they have changed."""
        if keys != self._keys:
            self._keys = keys
            self._to_own([keys])

    def tell_pods(self) -> None:
        """Sends the ready gateway pods to all relays, if they or the number of this pod's relays have changed."""
        message = self._pods.message(len(self.own))
        if message != self._gateways:
            self._gateways = message
            for stream in (*self.own, *self.remote):
                stream.send([message])

    # Called by streams.

    def connected(self, stream: SignedStream) -> None:
        """Notes a connection that proves nothing yet, and closes the oldest one if there are too many."""
        if len(self._unproven) >= MAX_UNPROVEN:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.close()
        self._unproven[stream] = None

    def opened(self, stream: Stream) -> None:
        """Sends what a relay needs to know first."""
        if isinstance(stream, SignedStream):
            self._unproven.pop(stream, None)
            self.remote.add(stream)
            stream.send([self._gateways])
            return
        self.own.add(stream)
        stream.send([self._keys])
        self.tell_pods()
        for one in known(self._catalog, everything(self._catalog)):
            stream.send([one])

    def ended(self, stream: Stream) -> bool:
        """Returns whether the stream was open."""
        if isinstance(stream, SignedStream):
            self._unproven.pop(stream, None)
            if stream not in self.remote:
                return False
            self.remote.remove(stream)
        elif stream not in self.own:
            return False
        else:
            self.own.remove(stream)
            self.tell_pods()
        return True

    def elsewhere(self, ask: Ask) -> str | None:
        """Returns the other pod that answers for an `Ask`; None: this one."""
        owner = self._pods.owner(ask.service, ask.without)
        return None if ask.turns >= MAX_TURNS or owner == self._pods.own else owner

    def _accept(self) -> SignedStream:
        return SignedStream(self, self._registry, self._max_unsent_bytes, Accepting(self._keys.known, self._pods.own))

    def _send_beats(self) -> None:
        for stream in (*self.own, *self.remote):
            stream.send([])
        self._beat = asyncio.get_running_loop().call_later(BEAT_S, self._send_beats)

    def _changed(self, change: Change) -> None:
        if self.own:
            for one in known(self._catalog, change):
                self._to_own([one])

    def _to_own(self, messages: Sequence[FromPicker]) -> None:
        for stream in tuple(self.own):
            stream.send(messages)


def _make_room(socket: Path) -> None:
    """Removes the stale socket of a killed picker."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)

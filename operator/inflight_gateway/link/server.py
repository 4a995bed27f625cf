"""The picker's end of the streams to its relays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, cast

import msgspec

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.link.wire import (
    Answering,
    Ask,
    Ended,
    Frames,
    FromPicker,
    FromRelay,
    Go,
    Held,
    Hello,
    Keys,
    Known,
    Left,
    Pods,
    Progress,
    Refuse,
    frame,
    from_relay,
)
from inflight_gateway.types import Finished, ServiceConfig

_log = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 64 * 2**20
"""Most bytes that a relay may leave unread; one with more has hung, and its stream is closed."""

MAX_KNOWN_OBJECTS = 256
MAX_KNOWN_BYTES = 2**20
"""Most objects of a `Known`, and most estimated bytes of them unless it has one only: a stream sends answers between
these messages."""

MAX_REPLIES = 128
"""Most answers of a frame: in a burst relays get the first ones long before the last, and know that it works."""

_Item = TypeVar("_Item")


class Registry(Protocol):
    """Receiver of messages: `requests.registry.Requests`."""

    def hello(
        self, running: Sequence[tuple[Ask, str]], relay: Hashable, reply: Callable[[Held | Go | Refuse], None], /
    ) -> None: ...

    def ask(self, ask: Ask, relay: Hashable, reply: Callable[[Held | Go | Refuse], None], /) -> None: ...

    def answering(self, request_id: str, attempt: int, address: str, refused: Sequence[str], /) -> None: ...

    def progress(self, tokens: Sequence[tuple[str, int]], /) -> None: ...

    def left(self, request_id: str, attempt: int, /) -> None: ...

    def ended(self, report: Finished, /) -> None: ...

    def lost(self, relay: Hashable, /) -> None: ...

    def end(self, request_id: str, /) -> None: ...


class RelayLinks:
    """Streams of all relays of this pod.

    Args:
        catalog: relays mirror it.
        max_unsent_bytes: see `MAX_UNSENT_BYTES`.

    Attributes:
        connected: number of streams.
    """

    def __init__(self, registry: Registry, catalog: Catalog, max_unsent_bytes: int = MAX_UNSENT_BYTES) -> None:
        self._registry = registry
        self._catalog = catalog
        self._max_unsent_bytes = max_unsent_bytes
        self._streams: set[_Stream] = set()
        self._keys = Keys(None)
        self._pods = Pods(1, 1)
        self._server: asyncio.Server | None = None
        catalog.subscribe(self._changed)

    @property
    def connected(self) -> int:
        return len(self._streams)

    @property
    def ready(self) -> bool:
        """True if relays are connected, and have read all that is known."""
        return bool(self._streams) and all(stream.welcomed() for stream in self._streams)

    async def serve(self, socket: Path) -> None:
        """Listens until closed.

        Raises:
            OSError: it cannot listen there.
        """
        _make_room(socket)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: _Stream(self._registry, self._streams, self._welcome, self._max_unsent_bytes), str(socket)
        )

    async def close(self) -> None:
        """Closes the socket and all streams. Their requests do not end: relays report them to the next picker."""
        if self._server is not None:
            self._server.close()
        streams = tuple(self._streams)
        self._streams.clear()
        for stream in streams:
            stream.close()

    def set_keys(self, keys: Keys) -> None:
        """Sends the gateway keys to the relays, if they have changed."""
        if keys != self._keys:
            self._keys = keys
            self._to_all([keys])

    def set_pods(self, pods: int) -> None:
        """Sends the shares of limits to the relays, if they have changed. Args: pods: live gateway pods, this one among
        them."""
        shares = Pods(pods, max(1, len(self._streams)))
        if shares != self._pods:
            self._pods = shares
            self._to_all([shares])

    def _welcome(self) -> Iterator[bytes]:
        catalog = self._catalog
        yield frame([self._keys, self._pods])
        every = Change(
            frozenset(catalog.services),
            frozenset(catalog.endpoints),
            catalog.secret_refs(),
            frozenset(catalog.outside),
            frozenset(catalog.models),
            hosts=True,
        )
        yield from (frame([one]) for one in known(catalog, every))

    def _changed(self, change: Change) -> None:
        if self._streams:
            for one in known(self._catalog, change):
                self._to_all([one])

    def _to_all(self, messages: Sequence[FromPicker]) -> None:
        content = frame(messages)
        for stream in tuple(self._streams):
            stream.write(content)


def _make_room(socket: Path) -> None:
    """Removes the stale socket of a killed picker."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)


class _Stream(asyncio.Protocol):
    """Stream of one relay. Answers of one turn of the event loop leave in one frame."""

    def __init__(
        self,
        registry: Registry,
        streams: set[_Stream],
        welcome: Callable[[], Iterable[bytes]],
        max_unsent_bytes: int,
    ) -> None:
        self._registry = registry
        self._streams = streams
        self._welcome = welcome
        self._max_unsent_bytes = max_unsent_bytes
        self._frames = Frames()
        self._replies: list[FromPicker] = []
        self._transport: asyncio.Transport | None = None
        self._relay = ""
        self._welcomed = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._streams.add(self)
        for content in self._welcome():
            self._transport.write(content)

    def data_received(self, data: bytes) -> None:
        try:
            for content in self._frames.feed(data):
                for message in from_relay.decode(content):
                    self._take(message)
                    if len(self._replies) >= MAX_REPLIES:
                        self._flush()
        except ValueError as error:
            _log.error("relay %s sent what is no message, and its stream is closed: %s", self._relay, error)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self in self._streams:
            self._streams.discard(self)
            self._registry.lost(self)
            _log.info("relay %s is gone", self._relay)

    # Called by the picker.

    def welcomed(self) -> bool:
        """Returns whether the relay has read what was known when it connected."""
        if not self._welcomed and self._relay and self._transport is not None:
            self._welcomed = not self._transport.get_write_buffer_size()
        return self._welcomed

    def reply(self, message: Held | Go | Refuse) -> None:
        if not self._replies:
            asyncio.get_running_loop().call_soon(self._flush)
        self._replies.append(message)

    def write(self, content: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(content)
        if transport.get_write_buffer_size() > self._max_unsent_bytes:
            _log.error("relay %s does not read, and its stream is closed", self._relay)
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        replies, self._replies = self._replies, []
        if replies:
            self.write(frame(replies))

    def _take(self, message: FromRelay) -> None:
        try:
            self._dispatch(message)
        except Exception:
            # A bug must not end the requests of all clients: this one goes on without the picker.
            _log.exception("a message of relay %s was not taken", self._relay)
            if isinstance(message, Ask | Answering | Left):
                self._registry.end(message.id)

    def _dispatch(self, message: FromRelay) -> None:
        registry = self._registry
        match message:
            case Ask():
                registry.ask(message, self, self.reply)
            case Answering():
                registry.answering(message.id, message.attempt, message.address, message.refused)
            case Ended():
                registry.ended(message.report)
            case Left():
                registry.left(message.id, message.attempt)
            case Progress():
                registry.progress(message.tokens)
            case Hello():
                self._relay = message.relay
                _log.info("relay %s is connected, with %d requests", message.relay, len(message.running))
                registry.hello(message.running, self, self.reply)


def known(catalog: Catalog, change: Change) -> Iterator[Known]:
    """Yields the present state of changed objects in messages of bounded sizes; the last one is `complete`, if the
    catalog is."""
    parts = [Known(hosts=catalog.hosts if change.hosts else None)]
    for configs in _chunks(((key, catalog.services.get(key)) for key in change.services), _service_bytes):
        parts.append(Known(services=configs))
    for listed in _chunks(
        ((key, catalog.endpoints_of(key)) for key in change.endpoints), lambda one: 100 * len(one[1])
    ):
        parts.append(Known(endpoints=listed))
    for data in _chunks(((ref, _entries(catalog, ref)) for ref in change.secrets), _secret_bytes):
        parts.append(Known(secrets=data))
    for flags in _chunks(((key, key in catalog.outside) for key in change.outside), lambda _: 100):
        parts.append(Known(outside=flags))
    for claims in _chunks(((one, catalog.models.get(one, ())) for one in change.models), _list_bytes):
        parts.append(Known(models=claims))
    yield from parts[:-1]
    yield msgspec.structs.replace(parts[-1], complete=catalog.complete)


def _entries(catalog: Catalog, ref: ObjectKey) -> dict[str, bytes] | None:
    data = catalog.secret(ref)
    return None if data is None else dict(data)


def _list_bytes(item: tuple[object, Sequence[object]]) -> int:
    return 100 + 100 * len(item[1])


def _service_bytes(item: tuple[ServiceKey, ServiceConfig | None]) -> int:
    config = item[1]
    return 100 if config is None else 500 + 150 * (len(config.tenants) + len(config.classes))


def _secret_bytes(item: tuple[ObjectKey, dict[str, bytes] | None]) -> int:
    return 100 + sum(len(name) + len(value) for name, value in (item[1] or {}).items())


def _chunks(items: Iterable[_Item], size_of: Callable[[_Item], int]) -> Iterator[tuple[_Item, ...]]:
    """Yields groups of at most `MAX_KNOWN_OBJECTS` items and `MAX_KNOWN_BYTES`, or of one item."""
    group: list[_Item] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if group and (len(group) == MAX_KNOWN_OBJECTS or size + item_size > MAX_KNOWN_BYTES):
            yield tuple(group)
            group, size = [], 0
        group.append(item)
        size += item_size
    if group:
        yield tuple(group)

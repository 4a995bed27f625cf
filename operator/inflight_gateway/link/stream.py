"""A stream of one relay, at its picker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, cast

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.signed import HANDSHAKE_S, Accepting, Sealed, watch
from inflight_gateway.link.wire import (
    Answering,
    Ask,
    Elsewhere,
    Ended,
    Frames,
    FromPicker,
    FromRelay,
    Go,
    Held,
    Hello,
    Left,
    Progress,
    Refuse,
    Released,
    Running,
    from_relay,
)
from inflight_gateway.types import Finished, PromptBlocks, Refusal

_log = logging.getLogger(__name__)

_FAULT = Refusal(500, "internal_error", "the gateway has a fault, see the log of the container picker")

MAX_REPLIES = 128
"""Most answers of a frame: in a burst relays get the first ones long before the last, and know that it works."""


class Registry(Protocol):
    """Receiver of messages: `requests.registry.Requests`."""

    def hello(self, name: str, relay: Hashable, /) -> None: ...

    def running(self, running: Running, relay: Hashable, reply: Callable[[Held | Go | Refuse], None], /) -> None: ...

    def released(self, service: ServiceKey, relay: Hashable, /) -> None: ...

    def ask(self, ask: Ask, relay: Hashable, reply: Callable[[Held | Go | Refuse], None], /) -> None: ...

    def moved(self, request_id: str, /) -> None: ...

    def answering(self, request_id: str, attempt: int, address: str, refused: Sequence[str], /) -> None: ...

    def told(self, request_id: str, attempt: int, blocks: PromptBlocks, /) -> None: ...

    def progress(self, tokens: Sequence[tuple[str, int]], /) -> None: ...

    def left(self, request_id: str, attempt: int, /) -> None: ...

    def ended(self, report: Finished, /) -> None: ...

    def lost(self, relay: Hashable, /) -> None: ...

    def end(self, request_id: str, /) -> None: ...


class Links(Protocol):
    """Owner of streams: `link.server.RelayLinks`."""

    def connected(self, stream: SignedStream, /) -> None:
        """Notes a stream that proves nothing yet, which it may close."""

    def opened(self, stream: Stream, /) -> None:
        """Notes that messages may be sent."""

    def ended(self, stream: Stream, /) -> bool:
        """Returns whether the stream was open."""

    def elsewhere(self, ask: Ask, /) -> str | None:
        """Returns the pod that answers an `Ask`; None: this one."""


class Stream(asyncio.Protocol):
    """A stream. Answers of one turn of the event loop leave in one frame.

    Args:
        max_unsent_bytes: most bytes that the relay may leave unread.
    """

    def __init__(self, links: Links, registry: Registry, max_unsent_bytes: int) -> None:
        self._links = links
        self._registry = registry
        self._max_unsent_bytes = max_unsent_bytes
        self._frames: Frames | Sealed = Frames()
        self._replies: list[FromPicker] = []
        self._transport: asyncio.Transport | None = None
        self._relay = ""
        self._welcomed = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._links.opened(self)

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
        if self._links.ended(self):
            self._registry.lost(self)
            _log.info("relay %s is gone", self._relay)

    # Called by the picker.

    def welcomed(self) -> bool:
        """Returns whether the relay has read what was known when it connected."""
        if not self._welcomed and self._relay and self._transport is not None:
            self._welcomed = not self._transport.get_write_buffer_size()
        return self._welcomed

    def send(self, messages: Sequence[FromPicker]) -> None:
        """Sends a frame."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(self._frames.frame(messages))
        if transport.get_write_buffer_size() > self._max_unsent_bytes:
            _log.error("relay %s does not read, and its stream is closed", self._relay)
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _reply(self, message: Elsewhere | Held | Go | Refuse) -> None:
        if not self._replies:
            asyncio.get_running_loop().call_soon(self._flush)
        self._replies.append(message)

    def _flush(self) -> None:
        replies, self._replies = self._replies, []
        if replies:
            self.send(replies)

    def _take(self, message: FromRelay) -> None:
        try:
            self._dispatch(message)
        except Exception:
            # A bug must not end the requests of all clients.
            _log.exception("a message of relay %s was not taken", self._relay)
            if isinstance(message, Ask | Answering | Left):
                self._registry.end(message.id)
            if isinstance(message, Ask):  # without an answer the relay would no longer trust this picker
                self._reply(Refuse.of(message.id, message.attempt, _FAULT))

    def _dispatch(self, message: FromRelay) -> None:
        registry = self._registry
        match message:
            case Ask():
                pod = self._links.elsewhere(message)
                if pod is None:
                    registry.ask(message, self, self._reply)
                else:
                    registry.moved(message.id)
                    self._reply(Elsewhere(message.id, message.attempt, pod))
            case Answering():
                registry.answering(message.id, message.attempt, message.address, message.refused)
                if message.blocks is not None:
                    registry.told(message.id, message.attempt, message.blocks)
            case Ended():
                registry.ended(message.report)
            case Left():
                registry.left(message.id, message.attempt)
            case Progress():
                registry.progress(message.tokens)
            case Running():
                registry.running(message, self, self._reply)
            case Released():
                registry.released(message.service, self)
            case Hello():
                self._relay = message.relay
                _log.info("relay %s is connected", message.relay)
                registry.hello(message.relay, self)


class SignedStream(Stream):
    """A stream from another pod: no message is read before the relay has proven that it has the gateway key.

    Attributes:
        proven: it has.
    """

    def __init__(self, links: Links, registry: Registry, max_unsent_bytes: int, accepting: Accepting) -> None:
        super().__init__(links, registry, max_unsent_bytes)
        self.proven = False
        self._accepting = accepting
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        watch(self._transport)
        self._limit = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.close)
        self._transport.write(self._accepting.greeting)
        self._links.connected(self)

    def data_received(self, data: bytes) -> None:
        if self.proven:
            super().data_received(data)
            return
        assert self._transport is not None
        assert self._limit is not None
        try:
            self._transport.write(self._accepting.feed(data))
        except ValueError as error:
            _log.warning("a stream is closed: %s", error)
            self.close()
            return
        if self._accepting.sealed is not None:
            self.proven, self._frames = True, self._accepting.sealed
            self._limit.cancel()
            self._links.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(error)

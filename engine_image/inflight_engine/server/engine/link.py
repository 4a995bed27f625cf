"""The connection to the current engine process, replaced when the process dies."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

import numpy as np

from inflight_engine.channel import encode
from inflight_engine.messages import AddRequest, FromEngine, ToEngine
from inflight_engine.server.engine.client import EngineClient
from inflight_engine.server.requests.generation import GenerationRequest


class EngineLink:
    """At most one connection at a time; messages of earlier ones are ignored.

    Args:
        on_message: called for each message, in order, in the event loop.
        on_lost: called once for a connection that ended, with the reason if known; not after `cut`.

    Attributes:
        open: the engine accepts messages. Before that, and after loss of the connection, they are dropped.
    """

    def __init__(self, on_message: Callable[[FromEngine], None], on_lost: Callable[[str | None], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._client: EngineClient | None = None
        self.open = False

    async def connect(self, sock: socket.socket) -> None:
        """Take over a connected socket; the previous one was lost or cut."""

        def message(message: FromEngine) -> None:
            if client is self._client:
                self._on_message(message)

        def lost(why: str | None) -> None:
            if client is self._client:
                self.cut()
                self._on_lost(why)

        client = self._client = EngineClient(message, lost)
        await client.connect(sock)

    def send(self, *messages: ToEngine) -> None:
        """Queue messages, all or (when one cannot be encoded, also to an engine that is gone) none."""
        frames = b"".join(map(encode, messages))
        if self.open and self._client is not None:
            self._client.write(frames)

    def cut(self) -> None:
        """Close the connection."""
        self.open = False
        client, self._client = self._client, None
        if client is not None:
            client.close()


def add_request(
    request: GenerationRequest, arrived: float, token_ids: Sequence[int] = (), *, announce_start: bool
) -> AddRequest:
    """The message that submits a request. `token_ids`: of its answer, those that it has."""
    return AddRequest(
        request_id=request.request_id,
        prompt_token_ids=_packed(request.prompt_token_ids),
        sampling=request.sampling,
        arrival_time=arrived,
        scheduling=request.scheduling,
        announce_start=announce_start,
        external_id=request.external_id,
        output_token_ids=_packed(token_ids),
    )


def _packed(token_ids: Sequence[int]) -> bytes:
    return np.array(token_ids, np.dtype("<i4")).tobytes()

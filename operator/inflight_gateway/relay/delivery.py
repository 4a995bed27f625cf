"""Delivery to the client of a response that arrives in progress frames."""

from __future__ import annotations

import re

from inflight_gateway.relay.client import ClientConnection
from inflight_gateway.relay.errors import ClientError
from inflight_gateway.relay.frames import Frame
from inflight_gateway.relay.heads import Headers, end_to_end, without, without_internal
from inflight_gateway.relay.record import Record

DONE = b"data: [DONE]\n\n"

_CREATED = re.compile(rb'"created":\s*(\d+)')
"""The field in a chunk. Within a JSON string its quotes would be escaped."""


class Delivery:
    """Writes a response. It buffers frames until they may be sent: before the first token another attempt starts from
    scratch, and the client must not receive two starts.

    Attributes:
        started: the client has received the head.
        created: UNIX seconds sent to the client; None: none yet.
    """

    def __init__(self, client: ClientConnection, record: Record) -> None:
        self.started = False
        self.created: int | None = None
        self._client = client
        self._record = record
        self._headers: Headers = []
        self._kept: list[bytes] = []
        self._last: Frame | None = None

    def accepted(self, headers: Headers) -> None:
        """Keeps the headers of an engine's response."""
        self._headers = without(without_internal(end_to_end(headers)), b"content-length")

    def take(self, frame: Frame) -> None:
        """Buffers a frame with data."""
        self._last = frame
        self._kept.append(frame.data)

    def forget(self) -> None:
        """Discard unsent frames: the next attempt sends them again."""
        self._kept.clear()

    def send(self, now: float) -> None:
        """Send all buffered frames."""
        if not self._kept:
            return
        data = b"".join(self._kept)
        self._kept.clear()
        if not self.started:
            self.started = True
            created = _CREATED.search(data)
            self.created = None if created is None else int(created[1])
            self._record.status = 200
            self._client.start(200, self._headers, None)
        self._client.write(data)
        self._record.wrote(now)

    @property
    def counts_sent(self) -> bool:
        """True if a frame followed the last token or end of a choice: token counts, which come last, were sent."""
        last = self._last
        return self.started and last is not None and not any(note.startswith((b"t ", b"f ")) for note in last.notes)

    def whole(self, status: int, data: bytes) -> None:
        """Sends a frame's data line as a whole response."""
        headers = without(self._headers, b"content-type", b"cache-control", b"x-accel-buffering")
        self._client.respond(status, [*headers, (b"content-type", b"application/json")], json_of(data))

    def end_with(self, error: ClientError) -> None:
        """Ends the response with an error: a whole response if none has begun, else an event, without `[DONE]`."""
        if self.started:
            self._client.write(error.event)
            self._client.finish()
        else:
            self._client.refuse(error)


def json_of(data: bytes) -> bytes:
    """Returns the JSON of a frame's one data line."""
    return data.strip().removeprefix(b"data:").strip()

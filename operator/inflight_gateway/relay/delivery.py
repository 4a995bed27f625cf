"""Delivery to the client of a response that arrives in progress frames."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import msgspec

from inflight_base.http.heads import Headers, without
from inflight_gateway.relay.answers.frames import DONE, MAX_FRAME_BYTES, Frame
from inflight_gateway.relay.answers.usage import without_usage
from inflight_gateway.relay.http.client import WRITE_BUFFER_BYTES, Client
from inflight_gateway.relay.http.errors import ClientError
from inflight_gateway.relay.record import Record
from inflight_gateway.request.headers import of_answer
from inflight_gateway.request.paths import Api, api_of

MAX_UNSENT_BYTES = 2**20
"""Most bytes of frames before the first token, beside what they repeat of the request."""

_ECHOED = 8
"""Most bytes before the first token for each byte of the request: the first two events of OpenAI Responses have its
instructions and tools, and these with all their fields."""

_MOST_FIRST_BYTES = 16 * 2**10
"""Longest first event that is kept while its stream lasts: it has the instructions and tools of the request."""

_WAITING_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_WAITING = b": waiting for a replica\n\n"

_CREATED = re.compile(rb'"created(?:_at)?":\s*(\d{1,12})\b')
"""The field in a chunk, or in the first event of OpenAI Responses. Within a JSON string its quotes would be escaped."""


_BYTES_PER_TOKEN = 512
"""Most bytes of a frame for each token before it: the last events of OpenAI Responses have the whole text up to three
times."""

_BYTES_PER_SCORE = 128
"""Mean bytes of a log-probability with its token, in the most verbose form."""


class TooMuchUnsent(ValueError):
    """An engine has sent more than it may before its first token."""


class Delivery:
    """Writes a response. It buffers frames until they may be sent: before the first token another attempt starts from
    scratch, and the client must not receive two starts.

    Attributes:
        started: the client has received the head.
        created: UNIX seconds sent to the client; None: none yet.
        events: number of them that the client has.
        model: that the request asked for.
        strip: the client did not ask for the token counts that the engine sends.
        done: last event of a stream; Anthropic Messages has none.

    Args:
        path: of the request, without its query.
    """

    def __init__(self, client: Client, record: Record, path: bytes) -> None:
        self.started = self.strip = self._sent = False
        self.created: int | None = None
        self.events = 0
        self.model = ""
        self._most_unsent = MAX_UNSENT_BYTES
        self._api = api_of(path.decode("latin-1"))
        self.done = b"" if self._api is Api.MESSAGES else DONE
        self._path = path
        self._client = client
        self._record = record
        self._headers: Headers = []
        self._first = b""
        """The first event of OpenAI Responses; empty: it is too long to be kept."""
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._last: Frame | None = None
        self._blocked = False
        self._rest = memoryview(b"")
        self._done: Callable[[], None]

    @property
    def kept_bytes(self) -> int:
        """Bytes of frames that were not sent, of data that a client does not read, and of the first event."""
        return self._kept_bytes + len(self._first) + (self._client.unsent_bytes if self._blocked else 0)

    def allow(self, size: int, scores: int) -> None:
        """Notes what the request lets the engine send before a token. Args: size: bytes of its body, of which each may
        be a token of the prompt. scores: log-probabilities for each of these tokens."""
        asked = min(_BYTES_PER_SCORE * scores * size, MAX_FRAME_BYTES)
        self._most_unsent = MAX_UNSENT_BYTES + _ECHOED * size + asked

    def most_frame_bytes(self, tokens: int) -> int:
        """Returns the most bytes of the next frame. Args: tokens: those before it."""
        return self._most_unsent + _BYTES_PER_TOKEN * tokens

    def wait(self, headers: Headers) -> None:
        """Tells a client that its stream waits for a replica. Args: headers: for the head, beside those of a stream."""
        if not self.started:
            self._start([*_WAITING_HEADERS, *headers])
        self._client.write(_WAITING)

    def _start(self, headers: Headers) -> None:
        self.started = True
        self._record.status = 200
        self._client.start(200, headers, None)

    def accepted(self, headers: Headers) -> None:
        """Keeps the headers of an engine's response."""
        self._headers = of_answer(headers)

    def take(self, frame: Frame) -> None:
        """Buffers a frame with data.

        Raises:
            TooMuchUnsent: too much is buffered.
        """
        self._last = frame
        data = frame.data if frame.data != DONE else self.done
        if self.strip and data != DONE:
            data = without_usage(data, counts=any(note.startswith(b"u ") for note in frame.notes))
        self._kept.append(data)
        self._kept_bytes += len(data)
        if not self._sent and self._kept_bytes > self._most_unsent:
            raise TooMuchUnsent

    def forget(self) -> None:
        """Discard unsent frames: the next attempt sends them again."""
        self._kept.clear()
        self._kept_bytes = 0

    def send(self, now: float) -> None:
        """Send all buffered frames."""
        if not self._kept_bytes:
            return
        data = b"".join(self._kept)
        self.forget()
        if not self._sent:
            self._sent = True
            created = _CREATED.search(data)
            self.created = None if created is None else int(created[1])
            if self._api is Api.RESPONSES:
                end = data.find(b"\n\n", 0, _MOST_FIRST_BYTES)
                self._first = data[: max(0, end)]
            if not self.started:
                self._start(self._headers)
        self.events += data.count(b"\n\n")
        self._client.write(data)
        self._record.wrote(now)

    @property
    def flows(self) -> bool:
        """True if the client reads, and has all frames so far."""
        return self._sent and not self._kept_bytes and not self._blocked

    def token(self, data: bytes, now: float) -> None:
        """Sends the data of a frame of one token at once, while the stream `flows`."""
        self._last = None
        self.events += 1
        self._client.write(data)
        self._record.wrote(now)

    @property
    def counts_sent(self) -> bool:
        """True if a frame followed the last token or end of a choice: token counts, which come last, were sent."""
        last = self._last
        return self._sent and last is not None and not any(note.startswith((b"t ", b"f ")) for note in last.notes)

    def whole(self, status: int, data: bytes, done: Callable[[], None]) -> None:
        """Sends a frame's data line as a whole response, as fast as the client reads it, then calls `done`."""
        body = json_of(data)
        self.begin_whole(status, len(body))
        self._rest, self._done = memoryview(body), done
        self._kept_bytes = len(body)
        self._write_rest()

    def begin_whole(self, status: int, length: int | None = None) -> None:
        """Sends the head of a whole response. Args: length: bytes of its body; None: not known."""
        headers = without(self._headers, b"content-type", b"cache-control", b"x-accel-buffering")
        self._client.start(status, [*headers, (b"content-type", b"application/json")], length)

    def client_writable(self, *, now: bool) -> None:
        self._blocked = not now
        if now and self._kept_bytes and len(self._rest):
            self._write_rest()

    def _write_rest(self) -> None:
        while len(self._rest) and not self._blocked:
            part, self._rest = self._rest[:WRITE_BUFFER_BYTES], self._rest[WRITE_BUFFER_BYTES:]
            self._client.write(bytes(part))
        if not len(self._rest):
            self._done()
            self._client.finish()

    def end_with(self, error: ClientError) -> None:
        """Ends the response with an error: a whole response if none has begun, else an event, without `[DONE]`."""
        if self.started:
            self._client.write(error.events(self._path, self.events, self._response()))
            self._client.finish()
        else:
            self._client.refuse(error)

    def _response(self) -> dict[str, object]:
        """Returns the response that the client's first event described, or one with the fields that each has."""
        response: dict[str, object] = {
            "id": f"resp_{self._record.external_id}",
            "object": "response",
            "created_at": self._record.arrived_unix,
            "model": self.model,
            "output": [],
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
        }
        with suppress(ValueError):
            response |= _created_event.decode(json_of(self._first.partition(b"\n")[2])).response
        return response


class _Created(msgspec.Struct):
    response: dict[str, msgspec.Raw]


_created_event = msgspec.json.Decoder(_Created)


def json_of(data: bytes) -> bytes:
    """Returns the JSON of a frame's one data line."""
    return data.strip().removeprefix(b"data:").strip()

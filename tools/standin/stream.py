"""A stand-in for an engine's HTTP API that costs almost nothing: `python -m tools.standin.stream PORT [SECONDS]`.

It answers POST requests at once with a fixed body, or, for a body with `"stream":true`, with an event every `SECONDS`
(`EVENT_SECONDS`) until the client leaves. With the header `x-inflight-progress` it answers in progress frames
(docs/engine.md), with the comments and the sizes of the engine's own, and in channels
where relays open them. Only the gateway in front of it is measured.
"""

from __future__ import annotations

import asyncio
import sys

from inflight_contract.channels import CHANNEL_HEADER, CHANNEL_PATH, COMMAND, FRAME
from tools.standin.connection import PROGRESS, Connection, Request, listen

EVENT_SECONDS = 0.5
WHOLE = b'{"id":"cmpl-1","object":"text_completion","model":"bench","choices":[{"index":0,"text":"x"}]}'
EVENT = (
    b'data: {"id":"cmpl-5f0c3b1e7d8a4c61b2f09d3e8a7c6b54","created":1764000000,"model":"bench",'
    b'"object":"text_completion","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}\n\n'
)
USAGE = b':u {"prompt_tokens":5,"cached_tokens":0,"completion_tokens":1}\n'
_METRICS = (
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
    b"inflight_max_num_seqs 100000\ninflight_max_num_batched_tokens 100000\n"
)
"""Metrics page with room for all requests: the gateway holds none."""


_CHANNEL = CHANNEL_HEADER.lower().encode()

_channels: dict[bytes, Stream] = {}
"""By name."""


class Stream(Connection):
    """A connection, which may become a channel. Args: seconds: between two events of a stream."""

    def __init__(self, seconds: float = EVENT_SECONDS) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._channel: Stream | None = None
        """That of its stream."""
        self._number = 0
        self._name: bytes | None = None
        """Name of the channel that it is."""
        self._reading: set[int] = set()
        self._unwritten: list[bytes] = []

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._name is not None:
            del _channels[self._name]

    def on_headers_complete(self) -> None:
        if self._request.target == CHANNEL_PATH.encode():
            self._name = self._request.header(_CHANNEL)
            _channels[self._name] = self
            self.begin(progress=False)

    def on_body(self, body: bytes) -> None:
        if self._name is None:
            super().on_body(body)
            return
        for number, reads in COMMAND.iter_unpack(body):
            (self._reading.add if reads else self._reading.discard)(number)

    def put(self, number: int, event: bytes) -> None:
        """Writes an event of a stream of this channel, with all others of this turn of the loop."""
        if number in self._reading and not self.transport.get_write_buffer_size():
            if not self._unwritten:
                asyncio.get_running_loop().call_soon(self._write)
            self._unwritten += (FRAME.pack(number, len(event)), event)

    def _write(self) -> None:
        self.send(b"".join(self._unwritten))
        self._unwritten.clear()

    def answer(self, request: Request) -> None:
        progress = bool(request.header(PROGRESS))
        if request.method == b"GET":
            self.whole(_METRICS, b"text/plain")
        elif b'"stream":true' in request.body.replace(b" ", b""):
            name, _, number = request.header(_CHANNEL).partition(b" ")
            self._channel = _channels.get(name)
            self._number = 0 if self._channel is None else int(number)
            self.begin(progress, b"%s: %d\r\n" % (_CHANNEL, self._number) if progress else b"")
            comment = b":t 0 28745\n" if progress else b""
            self._event(comment, asyncio.get_running_loop().time())
        elif progress:
            self.streamed(USAGE + b":t 0 1\n:f 0 stop\n:w 200\ndata: " + WHOLE + b"\n\n", progress)
        else:
            self.whole(WHOLE)

    def _event(self, comment: bytes, due: float) -> None:
        """Writes an event unless the last one still waits for the reader. Times do not drift."""
        if not self.transport.is_closing():
            if self._channel is not None:
                self._channel.put(self._number, comment + EVENT)
            elif not self.transport.get_write_buffer_size():
                self.send(comment + EVENT)
            due = max(due, asyncio.get_running_loop().time() - 1.0) + self._seconds
            self._timer = asyncio.get_running_loop().call_at(due, self._event, comment, due)


async def serve(port: int, seconds: float) -> None:
    """Answer on `port` until the process ends."""
    await (await listen(lambda: Stream(seconds), port)).serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else EVENT_SECONDS))

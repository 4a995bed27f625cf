"""A stand-in for an engine's HTTP API that costs almost nothing: `python -m tools.standin.stream PORT`.

It answers POST requests at once with a fixed body, or, for a body with `"stream":true`, with an event every
`EVENT_SECONDS` until the client leaves. With the header `x-inflight-progress` it answers in progress frames
(docs/engine.md). Only the gateway in front of it is measured.
"""

from __future__ import annotations

import asyncio
import sys

EVENT_SECONDS = 0.5
WHOLE = b'{"id":"cmpl-1","object":"text_completion","model":"bench","choices":[{"index":0,"text":"x"}]}'
EVENT = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"x"}]}\n\n'
USAGE = b':u {"prompt_tokens":5,"cached_tokens":0,"completion_tokens":1}\n'
_METRICS = (
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
    b"inflight_max_num_seqs 100000\ninflight_max_num_batched_tokens 100000\n"
)
"""With room for all: the gateway holds nothing back."""


class Upstream(asyncio.Protocol):
    """One connection. Requests come one after the other, each with a Content-Length."""

    def __init__(self) -> None:
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            _, found, length = head.partition(b"content-length:")
            size = int(length.split(b"\r\n", 1)[0]) if found else 0
            if len(self._received) < end + 4 + size:
                return
            body = self._received[end + 4 : end + 4 + size]
            self._received = self._received[end + 4 + size :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get"):
            self._write_whole(b"text/plain", _METRICS)
            return
        progress = b"x-inflight-progress" in head
        if b'"stream":true' in body.replace(b" ", b""):
            self._begin_events(progress)
            self._event(b":t 0 1\n" if progress else b"")
        elif progress:
            self._begin_events(progress)
            frame = USAGE + b":t 0 1\n:f 0 stop\n:w 200\ndata: " + WHOLE + b"\n\n"
            self._transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(frame), frame))
        else:
            self._write_whole(b"application/json", WHOLE)

    def _write_whole(self, kind: bytes, body: bytes) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(body), body)
        )

    def _begin_events(self, progress: bool) -> None:
        header = b"x-inflight-progress: 1\r\n" if progress else b""
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%stransfer-encoding: chunked\r\n\r\n" % header
        )

    def _event(self, comment: bytes) -> None:
        if self._transport.is_closing():
            return
        frame = comment + EVENT
        self._transport.write(b"%x\r\n%s\r\n" % (len(frame), frame))
        self._timer = asyncio.get_running_loop().call_later(EVENT_SECONDS, self._event, comment)


async def serve(port: int) -> None:
    """Answer on `port` until the process ends."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))

"""A stand-in for an engine's HTTP API that costs almost nothing: `python -m tools.standin.stream PORT [SECONDS]`.

It answers POST requests at once with a fixed body, or, for a body with `"stream":true`, with an event every `SECONDS`
(`EVENT_SECONDS`) until the client leaves. With the header `x-inflight-progress` it answers in progress frames
(docs/engine.md), with the comments and the sizes of the engine's own. Only the gateway in front of it is measured.
"""

from __future__ import annotations

import asyncio
import sys

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


class Stream(Connection):
    """A connection. Args: seconds: between two events of a stream."""

    def __init__(self, seconds: float = EVENT_SECONDS) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def answer(self, request: Request) -> None:
        progress = bool(request.header(PROGRESS))
        if request.method == b"GET":
            self.whole(_METRICS, b"text/plain")
        elif b'"stream":true' in request.body.replace(b" ", b""):
            self.begin(progress)
            comment = b":t 0 28745\n" if progress else b""
            self._event(comment, asyncio.get_running_loop().time())
        elif progress:
            self.streamed(USAGE + b":t 0 1\n:f 0 stop\n:w 200\ndata: " + WHOLE + b"\n\n", progress)
        else:
            self.whole(WHOLE)

    def _event(self, comment: bytes, due: float) -> None:
        """Writes an event unless the last one still waits for the reader. Times do not drift."""
        if not self.transport.is_closing():
            if not self.transport.get_write_buffer_size():
                self.send(comment + EVENT)
            due = max(due, asyncio.get_running_loop().time() - 1.0) + self._seconds
            self._timer = asyncio.get_running_loop().call_at(due, self._event, comment, due)


async def serve(port: int, seconds: float) -> None:
    """Answer on `port` until the process ends."""
    await (await listen(lambda: Stream(seconds), port)).serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else EVENT_SECONDS))

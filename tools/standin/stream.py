"""A stand-in for an engine's HTTP API that costs almost nothing: `python -m tools.standin.stream PORT`.

It answers POST requests at once with a fixed body, or, for a body with `"stream":true`, with an event every
`EVENT_SECONDS` until the client leaves. With the header `x-inflight-progress` it answers in progress frames
(docs/engine.md). Only the gateway in front of it is measured.
"""

from __future__ import annotations

import asyncio
import sys

from tools.standin.connection import PROGRESS, Connection, Request, listen

EVENT_SECONDS = 0.5
WHOLE = b'{"id":"cmpl-1","object":"text_completion","model":"bench","choices":[{"index":0,"text":"x"}]}'
EVENT = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"x"}]}\n\n'
USAGE = b':u {"prompt_tokens":5,"cached_tokens":0,"completion_tokens":1}\n'
_METRICS = (
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
    b"inflight_max_num_seqs 100000\ninflight_max_num_batched_tokens 100000\n"
)
"""Metrics page with room for all requests: the gateway holds none."""


class Stream(Connection):
    """A connection."""

    _timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def answer(self, request: Request) -> None:
        progress = bool(request.header(PROGRESS))
        if request.method == b"GET":
            self.whole(_METRICS, b"text/plain")
        elif b'"stream":true' in request.body.replace(b" ", b""):
            self.begin(progress)
            self._event(b":t 0 1\n" if progress else b"")
        elif progress:
            self.streamed(USAGE + b":t 0 1\n:f 0 stop\n:w 200\ndata: " + WHOLE + b"\n\n", progress)
        else:
            self.whole(WHOLE)

    def _event(self, comment: bytes) -> None:
        if not self.transport.is_closing():
            self.send(comment + EVENT)
            self._timer = asyncio.get_running_loop().call_later(EVENT_SECONDS, self._event, comment)


async def serve(port: int) -> None:
    """Answer on `port` until the process ends."""
    await (await listen(Stream, port)).serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))

"""Comments in silent event streams, by which the gateway sees that the server lives.

vLLM's own `--sse-keep-alive-interval` makes a task and a timer for each token; here, a token costs a reading of the
clock.
"""

from __future__ import annotations

import asyncio
from typing import Final

from inflight_vllm.asgi import Message, Send

COMMENT: Final = b": keep-alive\n\n"


class KeptAlive:
    """An ASGI `send` that adds a comment to an event stream at its start, by which the gateway knows that it may count
    on them, and after each `silence` seconds without a message. Each message has to be whole events, as vLLM's are."""

    def __init__(self, send: Send, silence: float) -> None:
        self._send = send
        self._silence = silence
        self._loop = asyncio.get_running_loop()
        self._latest = 0.0
        """Time of the latest message or comment."""
        self._sending = False
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Future[None] | None = None

    async def __call__(self, message: Message) -> None:
        """Send a message, after a comment that is on its way."""
        self._sending = True
        if self._comment is not None:
            await self._comment
            self._comment = None
        kind = message["type"]
        if kind == "http.response.body" and not message.get("more_body"):
            self.stop()
        await self._send(message)
        begins = kind == "http.response.start" and _is_stream(message)
        if begins:
            await self._send_comment()
        self._sending = False
        self._latest = self._loop.time()
        if begins:
            self._wait()

    def stop(self) -> None:
        """Send no more comments."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = self._loop.call_at(self._latest + self._silence, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        if self._sending or not (self._comment is None or self._comment.done()):
            self._latest = now  # the client has not taken the bytes before
        elif now >= self._latest + self._silence:
            self._latest = now
            self._comment = asyncio.ensure_future(self._send_comment())
        self._wait()

    async def _send_comment(self) -> None:
        await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})


def _is_stream(start: Message) -> bool:
    headers = start.get("headers", ())
    return any(name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)

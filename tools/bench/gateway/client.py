"""Clients of the overhead benchmark: closed-loop requests over kept connections, and open streams.

The closed loop does not use the client of other loads, `inflight_kubectl.load.client`: with 8 connections that takes
80 us of CPU for a request, this one 11 us, and the gateway whose overhead is measured runs on the same cores.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

Address = tuple[str, int]

HOST = "bench.default"


def prompt_body(characters: int) -> dict[str, Any]:
    """A completion request whose prompt has so many characters."""
    text = ("the quick brown fox jumps over the lazy dog " * (characters // 44 + 1))[:characters]
    return {"model": "bench", "prompt": text, "max_tokens": 1, "stream": False}


def _request(body: Mapping[str, Any], host: str = HOST) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n".encode()
    return head + b"content-length: %d\r\n\r\n%s" % (len(content), content)


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    status, lower = head.split(b" ", 2)[1], head.lower()
    if b"content-length:" in lower:
        body = await reader.readexactly(int(lower.split(b"content-length:")[1].split(b"\r\n", 1)[0]))
    else:
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    if status != b"200":
        raise RuntimeError(f"status {status.decode()}: {body[:300].decode(errors='replace')}")


async def closed_loop(address: Address, connections: int, seconds: float, body: Mapping[str, Any]) -> Sequence[float]:
    """Seconds of each request, on so many connections that send one request after the other.

    Raises:
        RuntimeError: an answer is not 200.
    """
    request, taken = _request(body), []
    until = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*address)
        while (began := time.perf_counter()) < until:
            await _one(reader, writer, request)
            taken.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return taken


class Stream(asyncio.Protocol):
    """A streamed answer that is counted and thrown away.

    Attributes:
        events: received so far.
        longest_s: longest time between two reads with events since `forget`.
        first: done with the first event, or with the error that ended the stream before it.
    """

    def __init__(self, request: bytes) -> None:
        self.events, self.longest_s = 0, 0.0
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._newest = request, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not (events := data.count(b"data: {")):
            if not self.events and not data.startswith(b"HTTP/1.1 200"):
                self._fail(data[:300].decode(errors="replace"))
            return
        now = time.perf_counter()
        if self.events:
            self.longest_s = max(self.longest_s, now - self._newest)
        elif not self.first.done():
            self.first.set_result(None)
        self.events, self._newest = self.events + events, now

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the stream ended: {exc or 'end of file'}")

    def forget(self) -> None:
        """Restarts the search for the longest gap."""
        self.longest_s = 0.0

    def _fail(self, why: str) -> None:
        if not self.first.done():
            self.first.set_exception(RuntimeError(why))


@asynccontextmanager
async def open_streams(
    address: Address, streams: int, body: Mapping[str, Any], host: str = HOST, *, tokens: int = 1_000_000
) -> AsyncIterator[list[Stream]]:
    """Opens so many streams of `tokens` tokens, 64 at a time. Each has had an event when the block begins.

    Raises:
        RuntimeError: a stream ended before its first event.
    """
    request, few = _request({**body, "stream": True, "max_tokens": tokens}, host), asyncio.Semaphore(64)
    opened: list[Stream] = []

    async def begin() -> None:
        async with few:
            _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(request), *address)
            opened.append(stream)
            await stream.first

    try:
        await asyncio.gather(*(begin() for _ in range(streams)))
        yield opened
    finally:
        for stream in opened:
            stream.first.cancel()
            stream.transport.abort()


async def send_steadily(
    address: Address, per_second: float, seconds: float, bodies: Sequence[Mapping[str, Any]], host: str
) -> int:
    """Sends these bodies in turn at a fixed rate, each on a new connection, whether or not answers come. Returns the
    number of answers.

    Raises:
        RuntimeError: an answer is not 200.
    """
    requests = [_request(body, host) for body in bodies]

    async def one(request: bytes) -> None:
        reader, writer = await asyncio.open_connection(*address)
        try:
            await _one(reader, writer, request)
        finally:
            writer.close()

    sent, begin = [], time.perf_counter()
    for number in range(round(per_second * seconds)):
        await asyncio.sleep(max(0.0, begin + number / per_second - time.perf_counter()))
        sent.append(asyncio.create_task(one(requests[number % len(requests)])))
    await asyncio.gather(*sent)
    return len(sent)

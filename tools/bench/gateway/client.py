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

from inflight_kubectl.answers import Answer
from inflight_kubectl.load.client import Client

Address = tuple[str, int]


def prompt_body(characters: int) -> dict[str, Any]:
    """A completion request whose prompt has so many characters."""
    text = ("the quick brown fox jumps over the lazy dog " * (characters // 44 + 1))[:characters]
    return {"model": "bench", "prompt": text, "max_tokens": 1, "stream": False}


def _request(body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: bench.default\r\ncontent-type: application/json\r\n"
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


@asynccontextmanager
async def open_streams(address: Address, streams: int, body: Mapping[str, Any]) -> AsyncIterator[list[float]]:
    """Opens so many streams, whose events are read. Yields the time of each stream's newest event; every stream has had
    one when the block begins."""
    newest = [0.0] * streams
    begun = asyncio.Semaphore(64)

    async def read(index: int, first: asyncio.Event) -> None:
        def seen(_: str) -> None:
            newest[index] = time.perf_counter()
            first.set()

        await client.ask(
            {**body, "stream": True}, Answer(time.monotonic()), headers={"host": "bench.default"}, show=seen
        )

    tasks: list[asyncio.Task[None]] = []

    async def begin(index: int) -> None:
        async with begun:
            first = asyncio.Event()
            task = asyncio.create_task(read(index, first))
            tasks.append(task)
            begins = asyncio.create_task(first.wait())
            await asyncio.wait((task, begins), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                begins.cancel()
                raise RuntimeError(f"a stream ended at once: {task.exception() or 'without an event'}")

    async with Client(f"http://{address[0]}:{address[1]}") as client:
        try:
            await asyncio.gather(*(begin(index) for index in range(streams)))
            yield newest
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

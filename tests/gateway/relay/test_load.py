"""Memory and order under many or slow clients."""

from __future__ import annotations

import asyncio
import gc
import json

import aiohttp
import pytest

from inflight_gateway.relay.shared import Tuning
from tests.gateway.relay.conftest import eventually
from tests.gateway.relay.fake_engine import Do, frames_for
from tests.gateway.relay.test_continue import STREAM


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("lost_at", [None, 3_000_000], ids=["undisturbed", "continued"])
async def test_a_slow_client_holds_the_engine_back_and_gets_everything(make, lost_at):
    relay = await make(Tuning(silence_s=0.3))
    frame = b':t 0 7\ndata: {"created": 5, "text": "' + b"x" * 10_000 + b'"}\n\n'
    data = frame.split(b"\n", 1)[1]
    frames, count = frame * 600 + b"data: [DONE]\n\n", 600
    rest = frame * (600 - (lost_at or 0) // len(frame)) + b"data: [DONE]\n\n"
    steps = (
        [Do(frames=frames, split=60_000)]
        if lost_at is None
        else [
            Do(frames=frames, split=60_000, cut=lost_at),
            Do(frames=rest, split=60_000),
        ]
    )
    relay.script(*steps)
    reader, writer = await asyncio.open_unix_connection(str(relay.socket), limit=2**10)
    body = json.dumps({**STREAM, "max_tokens": 600}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: svc.ns\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(1.0)  # longer than the silence after which an engine is given up
    (client,) = relay.clients
    assert client.unsent_bytes < 2**20
    assert len(relay.engine.seen) == 1
    received = b""
    async with asyncio.timeout(60):
        while size := int(await reader.readuntil(b"\r\n"), 16):
            received += await reader.readexactly(size)
            await reader.readexactly(2)
    writer.transport.abort()
    assert received == data * count + b"data: [DONE]\n\n"


async def test_a_thousand_open_streams_take_little_memory_and_all_end(make):
    """Relay, engine and clients are in this process: what is measured is the sum of the three."""
    relay = await make(Tuning(silence_s=60.0))
    frames = frames_for(STREAM)
    gate = asyncio.Event()
    cut = frames.index(b"\n\n", len(frames) // 2) + 2

    relay.script(Do(split=cut))
    send = relay.engine._answer

    async def answer(do, seen, number, reader, writer):
        real = writer.drain

        async def drain():
            await real()
            await gate.wait()

        writer.drain = drain
        return await send(do, seen, number, reader, writer)

    relay.engine._answer = answer
    gc.collect()
    before = resident_bytes()
    connector = aiohttp.UnixConnector(str(relay.socket), limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:

        async def one() -> bytes:
            async with session.post("http://svc.ns/v1/chat/completions", json=STREAM) as response:
                return await response.read()

        tasks = [asyncio.create_task(one()) for _ in range(1000)]
        await eventually(lambda: len(relay.engine.seen) >= 1000, 60)  # one may be sent again on a busy machine
        await asyncio.sleep(0.5)
        grown = resident_bytes() - before
        gate.set()
        answers = await asyncio.gather(*tasks)
    assert len(set(answers)) <= 1001
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
    assert grown / 1000 < 150_000
    assert relay.worker._shared.bodies.kept == 0

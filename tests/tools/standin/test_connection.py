"""The stand-in engine over a real socket: its connection, cheap streams, and steps that take time."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tools.standin import stream, timed
from tools.standin.connection import Connection, listen


class Echo(Connection):
    """Answers with what came."""

    def answer(self, request):
        self.whole(
            json.dumps([request.method.decode(), request.header(b"x-name").decode(), len(request.body)]).encode()
        )


@asynccontextmanager
async def serving(connection):
    server = await listen(connection)
    host, port = server.sockets[0].getsockname()
    async with aiohttp.ClientSession(f"http://{host}:{port}") as client:
        yield client
    server.close()


async def parts():
    yield b"x" * 70_000
    yield b"y"


async def test_whole_and_chunked_bodies_are_read_and_connections_kept():
    async with serving(Echo) as client:
        for body, length in ((b"", 0), (b"x" * 300_000, 300_000), (parts(), 70_001)):
            async with client.post("/", data=body, headers={"X-Name": "a"}) as response:
                assert await response.json() == ["POST", "a", length]
        async with client.head("/") as response:
            assert int(response.headers["content-length"]) > 0
            assert await response.read() == b""


async def test_a_client_that_asks_for_it_gets_its_connection_closed():
    server = await listen(Echo)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b'["GET", "", 0]')
    writer.close()
    server.close()


@pytest.mark.parametrize("progress", [{}, {"x-inflight-progress": "1"}])
async def test_the_cheap_engine_answers_whole_and_streams_events(progress):
    async with serving(stream.Stream) as client:
        async with client.post("/v1/completions", json={"prompt": "a"}, headers=progress) as response:
            body = await response.read()
            assert stream.WHOLE in body
            assert (b":w 200\n" in body) == bool(progress)
        async with client.post("/v1/completions", json={"stream": True}, headers=progress) as response:
            assert response.headers.get("x-inflight-progress") == progress.get("x-inflight-progress")
            assert (await response.content.readuntil(b"\n\n")).endswith(stream.EVENT)
        async with client.get("/metrics") as response:
            assert b"vllm:num_requests_running 0" in await response.read()


async def test_steps_take_as_long_as_the_cost_model_says_and_requests_that_run_side_by_side_share_them():
    engine = timed.Engine()
    async with serving(lambda: timed.Timed(engine)) as client:
        steps = asyncio.create_task(engine.steps())

        async def ask(tokens):
            async with client.post("/v1/completions", json={"prompt": "abc", "max_tokens": tokens}) as response:
                return (await response.read()).count(b'"text": "x"')

        began = time.monotonic()
        assert await asyncio.gather(*(ask(4) for _ in range(timed.MAX_NUM_SEQS))) == [4] * timed.MAX_NUM_SEQS
        assert 4 * timed.COST.base_s <= time.monotonic() - began < 12 * timed.COST.base_s
        steps.cancel()


async def test_a_client_that_leaves_frees_its_place():
    engine = timed.Engine()
    async with serving(lambda: timed.Timed(engine)) as client:
        steps = asyncio.create_task(engine.steps())
        async with client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 10_000}) as response:
            await response.content.readuntil(b"\n\n")
            assert b"vllm:num_requests_running 1\n" in engine.page()
        response.close()
        async with asyncio.timeout(60):
            while b"vllm:num_requests_running 0\n" not in engine.page():  # noqa: ASYNC110 (what a page says)
                await asyncio.sleep(0.01)
        steps.cancel()

"""The real engine, its process and model, behind the relay: streams in its channel are those of connections of their
own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace

import pytest

from tests.engine.server.real_server import RealServer
from tests.gateway.relay.conftest import QUICK, Setup, eventually
from tests.gateway.relay.fake_engine import FakeEngine

PATIENT = replace(
    QUICK, silence_s=100.0, head_s=100.0, limits=replace(QUICK.limits, max_deaths=9, max_wait_s=300.0, max_pause_s=2.0)
)
ASKED = {"model": "m", "prompt": "The sea is", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "stream": True}


class OneEngine(FakeEngine):
    """Its address, in place of stand-ins."""

    def __init__(self, server: RealServer) -> None:
        super().__init__()
        self.server = server

    async def start(self, count: int) -> None:
        self.addresses.append(self.server.url.removeprefix("http://"))

    async def stop(self, address: str | None = None) -> None:
        """Leaves the server to the other tests."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    small = "--dtype float32 --max-num-seqs 16 --max-num-batched-tokens 256 --max-model-len 512 --num-kv-blocks 256"
    running = RealServer(tmp_path_factory.mktemp("server"), *small.split(), "--served-model-name", "m")
    try:
        yield running.wait_ready()
    finally:
        running.close()


@pytest.fixture
async def relay(make, server) -> Setup:
    return await make(PATIENT, engine=OneEngine(server), engines=1, max_attempts=9)


def text(body: bytes) -> str:
    events = [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in event["choices"])


def of(relay: Setup):
    return next(iter(relay.shared.channels._of.values()), None)


async def ask(relay: Setup, **more) -> str:
    status, _, body = await relay.post({**ASKED, **more}, "/v1/completions")
    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")
    return text(body)


async def opened(relay: Setup) -> str:
    """The answer on a connection of its own; there is a channel then."""
    alone = await ask(relay)
    await eventually(lambda: of(relay) is not None and of(relay)._open)
    assert of(relay)._newest == 0
    return alone


async def test_streams_in_the_channel_of_a_real_engine_are_the_same(relay):
    alone = await opened(relay)
    assert await asyncio.gather(*(ask(relay) for _ in range(8))) == [alone] * 8
    assert of(relay)._newest == 8
    await eventually(lambda: not of(relay)._cancelled)
    assert of(relay)._lanes == {}


async def test_a_cancelled_stream_ends_at_the_engine_and_leaves_the_channel(relay, server):
    alone = await opened(relay)
    leaving = asyncio.create_task(ask(relay, max_tokens=400))
    await eventually(lambda: of(relay)._newest == 1 and server.metrics()["vllm:num_requests_running"] == 1)
    leaving.cancel()
    await eventually(lambda: server.metrics()["vllm:num_requests_running"] == 0)
    assert await ask(relay) == alone
    await eventually(lambda: not of(relay)._cancelled)
    assert of(relay)._newest == 2


async def test_streams_go_on_where_the_channel_is_cut(relay):
    alone = await opened(relay)
    streams = [asyncio.create_task(ask(relay)) for _ in range(4)]
    await eventually(lambda: of(relay)._newest == 4)
    await asyncio.sleep(0.3)
    of(relay)._call._transport.abort()
    assert await asyncio.gather(*streams) == [alone] * 4


async def test_streams_go_on_where_the_engine_process_is_killed(relay, server):
    alone = await opened(relay)
    streams = [asyncio.create_task(ask(relay)) for _ in range(4)]
    await eventually(lambda: of(relay)._newest == 4)
    await asyncio.sleep(0.3)
    os.kill(server.engine_pid(), signal.SIGKILL)
    assert await asyncio.gather(*streams) == [alone] * 4

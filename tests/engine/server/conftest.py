import asyncio
import time

import httpx
import pytest

from tests.engine.server.fake_engine import connected, server_config
from tests.engine.server.real_server import MODEL, RealServer


class Fake:
    """A service with a fake engine, and HTTP clients of its application and of that of its admin port."""

    def __init__(self, service, engine, app):
        self.service, self.engine, self.app = service, engine, app
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine")
        self.admin = httpx.AsyncClient(transport=httpx.ASGITransport(app.state.admin_app), base_url="http://engine")

    async def post(self, path, **body):
        return await self.http.post(path, json=body)


@pytest.fixture
def make_fake():
    """Makes services with a fake engine; keyword arguments change the server's configuration."""

    async def make(*, load=True, tokenizer=None, **changes):
        return Fake(*await connected(server_config(**changes), load=load, tokenizer=tokenizer))

    return make


@pytest.fixture
def virtual_clock(monkeypatch):
    """The monotonic clock is that of the running loop, for tests in virtual time."""
    monkeypatch.setattr(time, "monotonic", lambda: asyncio.get_running_loop().time())


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A real server for all tests that leave it running."""
    # float32: in bfloat16 the likeliest first tokens of the tests' question are nearly equal.
    flags = "--dtype float32 --max-num-seqs 16 --max-num-batched-tokens 256 --max-model-len 1024 --num-kv-blocks 512"
    running = RealServer(
        tmp_path_factory.mktemp("server"), *flags.split(), "--max-queued-requests", "64", "--grpc-port", "0"
    )
    try:
        yield running.wait_ready()
    finally:
        running.close()


@pytest.fixture
def own_server(tmp_path):
    """Starts real servers that a test may end."""
    started = []

    def start(*flags, wait=True, model=MODEL):
        small = "--max-num-seqs 4 --max-num-batched-tokens 128 --max-model-len 1024 --num-kv-blocks 256"
        started.append(RealServer(tmp_path, *small.split(), *flags, model=model))
        return started[-1].wait_ready() if wait else started[-1]

    yield start
    for running in started:
        running.close()

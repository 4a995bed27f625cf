"""Real Envoy and picker before one service with one engine: how its requests and answers pass."""

from __future__ import annotations

import asyncio
import json
import socket
from http.client import HTTPResponse

import aiohttp
import pytest
import pytest_asyncio

from tests.gateway.client import ask, service
from tests.gateway.fake_engine import FakeEngine, headers_of
from tests.gateway.gateway_stack import GatewayStack, until

INTERNAL_PATHS = ("/metrics", "//metrics", "/%6detrics", "/metrics?x", "/v1/../metrics", "/v1/%2e%2e/metrics")

pytestmark = pytest.mark.asyncio(loop_scope="module")
in_module = pytest_asyncio.fixture(scope="module", loop_scope="module")
"""Started once: a gateway takes a second of CPU until it serves, and these tests change nothing of it."""


@in_module
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@in_module
async def started():
    engine = await FakeEngine("engine").start()
    yield engine
    await engine.stop()


@in_module
async def stack(tmp_path_factory, started):
    stack = GatewayStack(tmp_path_factory.mktemp("gateway"))
    stack.services(service("a", started, model="m"))
    try:
        yield await stack.start_all()
    finally:
        stack.stop_all()


@pytest.fixture
def engine(started):
    """The engine, without the requests of earlier tests."""
    started.seen.clear()
    started.answer = "ok"
    return started


def exchanged(stack, *data):
    """Status and body that come back on a connection of its own, which Envoy may leave open for a second more."""
    with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as raw:
        raw.sendall(b"".join(data))
        answer = HTTPResponse(raw)
        answer.begin()
        return answer.status, answer.read()


@pytest.mark.parametrize("number", [80, 92, 95])
async def test_all_headers_that_envoy_lets_pass_reach_the_engine(stack, engine, number):
    begin = b"GET /version HTTP/1.1\r\nhost: a.default\r\nconnection: close\r\n"
    status, body = await asyncio.to_thread(exchanged, stack, begin, b"x: y\r\n" * number, b"\r\n")
    assert status == 200, body
    assert headers_of(engine.requests[0])["x"] == "y"


async def test_engines_own_paths_are_not_reachable(stack, engine, http):
    host, port = "127.0.0.1", stack.port
    for path in (*INTERNAL_PATHS, "/admin/drain", "/v1/runtime_config"):
        # Not aiohttp, which would normalize the path.
        with socket.create_connection((host, port)) as raw:
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: a.default\r\nConnection: close\r\n\r\n".encode())
            answer = raw.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 404"), path
        assert b'"code": "not_found"' in answer
    assert not engine.requests


async def test_bodies_up_to_32_mib_pass_and_longer_ones_get_413(stack, engine, http):
    status, _, _ = await ask(http, stack, data=b'{"prompt": "' + b"x" * (31 * 2**20) + b'"}')
    assert status == 200
    assert len(engine.requests[0].body) > 31 * 2**20
    status, body, _ = await ask(http, stack, data=b"x" * (33 * 2**20))
    assert status == 413
    assert body["error"]["code"]


async def test_request_ids_are_kept_or_made(stack, engine, http):
    _, _, headers = await ask(http, stack, headers={"x-request-id": "my-id-1"})
    assert headers["x-request-id"] == headers_of(engine.requests[0])["x-request-id"] == "my-id-1"
    _, _, headers = await ask(http, stack)
    assert headers["x-request-id"] == headers_of(engine.requests[1])["x-request-id"] != ""


async def test_requests_in_flight_are_counted_until_their_response_ends(stack, engine, http):
    engine.answer = "stream"
    engine.may_end.clear()

    async def in_flight():
        return (await stack.state())["services"][0]["in_flight"]

    body = json.dumps({"model": "m", "stream": True}).encode()
    async with http.post(stack.url + "/v1/completions", data=body, headers={"Host": "a.default"}) as answer:
        await answer.content.readline()
        assert await in_flight() == 1
        engine.may_end.set()
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")
    assert await until(lambda: _is_zero(in_flight), "no request is in flight", 20)


async def _is_zero(count):
    return await count() == 0

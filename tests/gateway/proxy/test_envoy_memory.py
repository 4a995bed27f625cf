"""Real Envoy with little memory, under requests with large bodies."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import aiohttp
import psutil
import pytest

from tests.gateway.client import CHAT, ask, service
from tests.gateway.gateway_stack import GatewayStack, until
from tests.gateway.tenants.things import secret

LARGE = json.dumps({"model": "m", "prompt": "x" * (15 << 20)}).encode()
MEMORY_MIB = 192
CHUNK = b"%x\r\n%b\r\n" % (300_000, b" " * 300_000)


@pytest.fixture
async def relayed(tmp_path):
    stack = GatewayStack(tmp_path, relays=1)
    stack.envoy_flags = ["--memory", str(MEMORY_MIB)]
    key = tmp_path / "key"
    key.write_text("k" * 43)
    stack.picker_flags = ["--gateway-key-file", str(key)]
    yield stack
    stack.stop_all()


async def test_large_bodies_reach_services_with_and_without_keys(relayed, engines, http):
    engine = await engines("engine")
    keys = {name: value.decode() for name, value in secret(acme="ifk_1").items()}
    relayed.services(
        service("a", engine, model="m"),
        service("keyed", engine, model="k", api_keys_secret="keys"),
        secrets=[{"namespace": "default", "name": "keys", "data": keys}],
    )
    relayed.envoy_flags = []
    await relayed.start_all()
    for host in ("a.default", "keyed.default"):
        status, body, _ = await ask(http, relayed, host=host, data=LARGE, headers={"authorization": "Bearer ifk_1"})
        assert (status, body) == (200, {"engine": "engine"}), host


async def test_a_large_body_without_a_key_is_refused_before_it_is_read(relayed, engines):
    engine = await engines("engine")
    keys = {name: value.decode() for name, value in secret(acme="ifk_1").items()}
    relayed.services(
        service("keyed", engine, model="k", api_keys_secret="keys"),
        secrets=[{"namespace": "default", "name": "keys", "data": keys}],
    )
    await relayed.start_all()
    for framing, begin in ((f"content-length: {20 << 20}", b""), ("transfer-encoding: chunked", CHUNK)):
        reader, writer = await asyncio.open_connection("127.0.0.1", relayed.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: keyed.default\r\n{framing}\r\n\r\n".encode() + begin)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert head.startswith(b"HTTP/1.1 401 "), framing
        assert b"www-authenticate: Bearer" in head
        assert b"x-inflight" not in head
        writer.close()

    async def counted():
        labels = 'namespace="default",service="keyed",status="401"'
        return f"inflight_gateway_requests_total{{{labels}}} 2.0" in await relayed.metrics()

    await until(counted, "both are counted once", 60)
    assert not engine.requests


async def test_many_large_bodies_at_once_are_refused_and_leave_envoy_within_its_memory(relayed, engines, http):
    engine = await engines("engine", "hang")
    relayed.services(service("a", engine, model="m"))
    await relayed.start_all()
    process, most, refused = psutil.Process(relayed.processes["envoy"].pid), 0.0, []

    async def large():
        with suppress(aiohttp.ClientConnectionError):
            async with http.post(f"{relayed.url}{CHAT}", data=LARGE, headers={"Host": "a.default"}) as answer:
                body = await answer.json()
                if answer.status != 504:  # the stand-in sends no head in time
                    refused.append((answer.status, answer.headers.get("retry-after"), body))

    clients = []
    for _ in range(40):
        clients.append(asyncio.create_task(large()))
        await asyncio.sleep(0.05)
        most = max(most, process.memory_info().rss / 2**20)
    await until(lambda: len(refused) > 5, "requests are refused", 60)
    assert {(status, after) for status, after, _ in refused} == {(503, "1")}
    assert {body["error"]["code"] for _, _, body in refused} <= {"gateway_overload", "gateway_full"}
    # The program takes 70 MiB besides its heap, and requests whose bodies were under way are not ended. All bodies
    # together have 600 MiB, of which Envoy without a bound holds each several times.
    assert most < 2 * MEMORY_MIB
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    engine.answer = "ok"

    async def served(**request):
        return (await ask(http, relayed, **request))[:2] == (200, {"engine": "engine"})

    await until(served, "small requests are served again", 60)
    await until(lambda: served(data=LARGE), "large requests are served again", 60)

"""Two gateways of real processes that know each other: limits and shares of tenants hold over both."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import cycle

import pytest

from tests.gateway.client import ask, service
from tests.gateway.fake_engine import headers_of
from tests.gateway.gateway_stack import GatewayStack, until
from tests.gateway.tenants.things import secret

KEYS = {"acme": "ifk_1", "other": "ifk_2"}


def bearer(tenant):
    return {"authorization": f"Bearer {KEYS[tenant]}"}


@pytest.fixture
async def pair(tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"the gateway's key")
    stacks = []
    for name in ("gw-0", "gw-1"):
        (tmp_path / name).mkdir()
        stacks.append(GatewayStack(tmp_path / name))
        stacks[-1].picker_flags += ["--gateway-key-file", str(key), "--name", name]
    yield stacks
    for stack in stacks:
        stack.stop_all()


async def start(pair, engine, tenants, **fields):
    data = {name: value.decode() for name, value in secret(**KEYS).items()}
    for stack, peer in zip(pair, reversed(pair), strict=True):
        stack.services(
            service("a", engine, model="m", uid="u-1", api_keys_secret="keys", tenants=tenants, **fields),
            secrets=[{"namespace": "default", "name": "keys", "data": data}],
            peers=[f"127.0.0.1:{peer.state_port}"],
        )
    await asyncio.gather(*(stack.start_all() for stack in pair))

    async def paired():
        return all(["inflight_gateway_peers 1.0" in await stack.metrics() for stack in pair])

    await until(paired, "they hear from each other", 10)


async def test_limits_of_requests_hold_over_both_within_one_percent(pair, engines, http):
    engine = await engines("engine")
    await start(pair, engine, [{"name": name, "limits": {"requests_per_minute": 300}} for name in KEYS])
    turn = cycle(pair)
    # Relays do not wait longer than 200 ms for a picker, which a starved machine may take for more at a time.
    at_once = asyncio.Semaphore(20)

    async def one(tenant):
        async with at_once:
            return (await ask(http, next(turn), headers=bearer(tenant)))[0]

    async def flood(tenant):
        return Counter(await asyncio.gather(*(one(tenant) for _ in range(450))))

    # Each gateway owns one of the tenants, or one both: asking and being asked are tried either way.
    for found in await asyncio.gather(*(flood(tenant) for tenant in KEYS)):
        assert set(found) == {200, 429}
        assert 297 <= found[200] <= 303


async def test_concurrent_requests_hold_over_both_exactly(pair, engines, http):
    engine = await engines("engine", "stream")
    engine.events = 1_000_000
    await start(pair, engine, [{"name": "acme", "limits": {"concurrent_requests": 5}}])
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    found = []
    for _, stack in zip(range(12), cycle(pair), strict=False):
        found.append(
            await http.post(
                f"{stack.url}/v1/chat/completions", json=body, headers=bearer("acme") | {"host": "a.default"}
            )
        )
    assert Counter(answer.status for answer in found) == {200: 5, 429: 7}
    for answer in found:
        answer.close()


async def test_waiting_tenants_get_their_shares_over_both(pair, engines, http):
    engine = await engines("engine", "stream")
    engine.events, engine.tick = 5, 0.01
    weights = {"acme": 3, "other": 1}
    await start(pair, engine, [{"name": name, "weight": weight} for name, weight in weights.items()], max_num_seqs=4)
    stop = asyncio.Event()

    async def client(stack, tenant):
        while not stop.is_set():
            await ask(http, stack, headers=bearer(tenant), stream=True, max_tokens=5)

    clients = [asyncio.create_task(client(stack, tenant)) for stack in pair for tenant in KEYS for _ in range(12)]
    await asyncio.sleep(1)
    begin = len(engine.requests)
    await until(lambda: len(engine.requests) > begin + 240, "requests are served")
    served = Counter(headers_of(one)["x-inflight-tenant"] for one in engine.requests[begin : begin + 240])
    stop.set()
    await asyncio.gather(*clients)
    assert 0.70 < served["acme"] / served.total() < 0.80

"""Real Envoy and picker, with stand-ins for engines: where requests go, and what clients cannot do."""

from __future__ import annotations

import hashlib
import json

from tests.gateway.client import ask, service
from tests.gateway.fake_engine import headers_of
from tests.gateway.gateway_stack import until


async def test_requests_go_by_host(stack, engines, http):
    first, second = await engines("first"), await engines("second")
    stack.services(service("a", first, model="model-a"), service("b", second, model="model-b"))
    await stack.start_all()
    for host in ("a.default", "a.default.svc", "a.default.svc.cluster.local:80", "A.DEFAULT", "a.default.svc."):
        status, body, _ = await ask(http, stack, "model-a", host=host)
        assert (status, body) == (200, {"engine": "first"}), host
    assert (await ask(http, stack, "model-b", host="b.default"))[:2] == (200, {"engine": "second"})
    for host in ("a", None):
        status, body, _ = await ask(http, stack, "model-a", host=host)
        assert (status, body["error"]["code"]) == (404, "service_not_found")


async def test_the_next_endpoint_takes_what_the_first_ones_refuse(stack, engines, http):
    """Connection refused, 503, and a connection that closes before a head: all three are tried elsewhere."""
    busy, closing, good = await engines("busy", "busy"), await engines("closing", "close"), await engines("good")
    stack.services(service("a", busy, closing, good, model="m", max_attempts=4, refusing=1))
    await stack.start_all()
    for number in range(12):
        status, body, _ = await ask(http, stack, headers={"x-request-id": f"request-{number}"})
        assert (status, body) == (200, {"engine": "good"})
    assert len(good.requests) == 12
    assert busy.requests
    assert closing.requests


async def test_no_more_endpoints_are_tried_than_the_service_allows(stack, engines, http):
    busy = [await engines(f"busy-{number}", "busy") for number in range(4)]
    stack.services(service("a", *busy, model="m", max_attempts=2))
    await stack.start_all()
    status, body, _ = await ask(http, stack)
    assert status == 503
    assert "is full" in body["error"]["message"]
    assert sum(len(engine.requests) for engine in busy) == 2


async def test_clients_cannot_choose_the_destination_or_the_tenant(stack, engines, http):
    mine, other = await engines("mine"), await engines("other")
    stack.services(service("a", mine, model="model-a"), service("b", other, model="model-b"))
    await stack.start_all()
    forged = {
        "x-gateway-destination-endpoint": other.address,
        "x-gateway-destination-endpoint-subset": other.address,
        "x-inflight-service": "default/b",
        "x-inflight-avoid": mine.address,
        "x-inflight-attempt": "2",
        "x-inflight-progress": "1",
        "x-inflight-tenant": "someone",
        "x-inflight-tenant-signature": "v1=00",
        "x-envoy-max-retries": "50",
        "x-envoy-upstream-rq-timeout-ms": "1",
    }
    status, body, headers = await ask(http, stack, host="a.default", headers=forged)
    assert (status, body) == (200, {"engine": "mine"})
    assert not other.requests
    seen = headers_of(mine.requests[0])
    assert [name for name in seen if name.startswith(("x-inflight", "x-gateway"))] == ["x-inflight-progress"]
    assert not [name for name in headers if name.lower().startswith("x-inflight")]


async def test_api_keys_are_checked_and_do_not_reach_engines(stack, engines, http):
    engine = await engines("engine")
    key = "ifk_" + "a" * 43
    entry = json.dumps({"tenant": "acme", "sha256": hashlib.sha256(key.encode()).hexdigest()})
    stack.services(
        service("a", engine, model="m", api_keys_secret="keys"), secrets=[{"name": "keys", "data": {"k1": entry}}]
    )
    gateway_key = stack.folder / "gateway-key"
    stack.picker_flags = ["--gateway-key-file", str(gateway_key)]
    await stack.start_all()
    for headers in ({}, {"authorization": "Bearer ifk_wrong"}):
        status, body, _ = await ask(http, stack, headers=headers)
        assert (status, body["error"]["type"]) == (401, "authentication_error")
    assert not engine.requests
    # The operator makes the key for signatures when it starts, which may be later: no tenant is sent unsigned.
    status, body, headers = await ask(http, stack, headers={"authorization": f"Bearer {key}"})
    assert status == 503
    assert headers["retry-after"]
    assert not engine.requests
    gateway_key.write_text("secret")

    async def signed():
        return (await ask(http, stack, headers={"authorization": f"Bearer {key}"}))[0] == 200

    await until(signed, "the tenant is signed", 60)
    seen = headers_of(engine.requests[0])
    assert "authorization" not in seen
    assert seen["x-inflight-tenant"] == "acme"
    assert seen["x-inflight-tenant-signature"]

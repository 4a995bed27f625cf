"""Real Envoy and picker, with stand-ins for engines: where requests go, and what clients cannot do."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.gateway.asking import ask, service
from tests.gateway.fake_engine import headers_of
from tests.gateway.gateway_stack import free_port, until


async def test_requests_go_by_host_and_without_one_by_model(stack, engines, http):
    first, second = await engines("first"), await engines("second")
    stack.services(service("a", first, model="model-a"), service("b", second, model="model-b"))
    await stack.start_all()
    for host in ("a.default", "a.default.svc", "a.default.svc.cluster.local:80", "A.DEFAULT", "a"):
        status, body, _ = await ask(http, stack, "model-a", host=host)
        assert (status, body) == (200, {"engine": "first"}), host
    assert (await ask(http, stack, "model-b"))[:2] == (200, {"engine": "second"})
    status, body, _ = await ask(http, stack, "model-c")
    assert status == 404
    assert body["error"]["code"] == "model_not_found"
    async with http.get(f"{stack.url}/v1/models", headers={"Host": "b.default"}) as answer:
        assert await answer.json() == {"engine": "second"}


async def test_the_next_endpoint_takes_what_the_first_ones_refuse(stack, engines, http):
    """Connection refused, 503, and a connection that closes before a head: all three are tried elsewhere."""
    busy, closing, good = await engines("busy", "busy"), await engines("closing", "close"), await engines("good")
    entry = service("a", busy, closing, good, model="m", max_attempts=4)
    entry["endpoints"].append(f"127.0.0.1:{free_port()}")
    stack.services(entry)
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
    assert seen.pop("x-gateway-destination-endpoint") == mine.address
    assert not [name for name in seen if name.startswith(("x-inflight", "x-gateway"))]
    assert not [name for name in headers if name.lower().startswith("x-inflight")]


INTERNAL_PATHS = ("/metrics", "//metrics", "/%6detrics", "/metrics?x", "/v1/../metrics", "/v1/%2e%2e/metrics")


@pytest.mark.parametrize("path", [*INTERNAL_PATHS, "/metrics/", "/admin/drain", "/v1/runtime_config", "/ready"])
def test_engines_own_paths_are_internal(path):
    from inflight_gateway.paths import is_hidden

    assert is_hidden(path)


@pytest.mark.parametrize("path", ["/v1/chat%2fcompletions", "/v1%2Fcompletions?x=1", "/%761/generate"])
def test_generations_under_another_spelling_of_their_path_are_not_served(path):
    """Engines undo the spelling; their tokens would not be counted."""
    from inflight_gateway.paths import is_hidden

    assert is_hidden(path)
    assert not is_hidden("/v1/models/owner%2Fname")


def exchanged(stack, *data):
    """What comes back on a connection of its own."""
    with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as raw:
        raw.sendall(b"".join(data))
        return raw.makefile("rb").read()


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: x\r\n\r\n", 400, b"transfer_encoding"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nno colon\r\n\r\n", 400, b"codec_error"),
        (b"GET / HTTP/1.0\r\nhost: a\r\n\r\n", 426, b"low_version"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, b"missing_host"),
        (b"CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\nconnection: close\r\n\r\n", 404, b"route_not_found"),
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431, b"too_many_headers"),
    ],
)
async def test_envoys_own_refusals_are_errors_in_openais_shape(stack, engines, request_, status, why):
    engine = await engines("engine")
    stack.services(service("a", engine, model="m"))
    await stack.start_all()
    answer = await asyncio.to_thread(exchanged, stack, request_)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["type"] == "invalid_request_error"
    assert why in error["code"].encode(), error


@pytest.mark.parametrize("number", [80, 92, 95])
async def test_all_headers_that_the_outer_listener_lets_pass_reach_the_engine(stack, engines, http, number):
    engine = await engines("engine")
    stack.services(service("a", engine, model="m"))
    await stack.start_all()
    begin = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
    answer = await asyncio.to_thread(exchanged, stack, begin, b"x: y\r\n" * number, b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]


async def test_no_header_of_the_gateways_own_names_passes(stack, engines, http):
    engine = await engines("engine")
    stack.services(service("a", engine, model="m"))
    await stack.start_all()
    forged = {
        "x-inflight-new": "1",
        "X-Envoy-Original-Dst-Host": "127.0.0.1:1",
        "x-gateway-destination-endpoint-new": "1",
    }
    assert (await ask(http, stack, headers=forged))[0] == 200
    assert not {name.lower() for name in forged} & set(headers_of(engine.requests[0]))


async def test_engines_own_paths_are_not_reachable(stack, engines, http):
    engine = await engines("engine")
    stack.services(service("a", engine, model="m"))
    await stack.start_all()
    host, port = "127.0.0.1", stack.port
    for path in (*INTERNAL_PATHS, "/admin/drain", "/v1/runtime_config"):
        # Not aiohttp, which would normalize the path.
        with socket.create_connection((host, port)) as raw:
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: a.default\r\nConnection: close\r\n\r\n".encode())
            answer = raw.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 404"), path
        assert b'"code": "not_found"' in answer
    assert not engine.requests


async def test_engines_say_what_is_wrong_with_a_body(stack, engines, http):
    engine = await engines("engine")
    stack.services(service("a", engine, model="m"))
    await stack.start_all()
    for data in (b"", b"{", b"[1]", b'{"messages": 5, "model": 7}', b"\xff" * 100, b"[" * 100_000):
        status, body, _ = await ask(http, stack, host="a.default", data=data)
        assert (status, body) == (200, {"engine": "engine"})  # the stand-in's answer to anything
        assert engine.requests[-1].body == data


async def test_bodies_up_to_32_mib_pass_and_longer_ones_get_413(stack, engines, http):
    engine = await engines("engine")
    stack.services(service("a", engine, model="m"))
    await stack.start_all()
    status, _, _ = await ask(http, stack, host="a", data=b'{"prompt": "' + b"x" * (31 * 2**20) + b'"}')
    assert status == 200
    assert len(engine.requests[0].body) > 31 * 2**20
    status, body, _ = await ask(http, stack, host="a", data=b"x" * (33 * 2**20))
    assert status == 413
    assert body["error"]["code"]


async def test_request_ids_are_kept_or_made(stack, engines, http):
    engine = await engines("engine")
    stack.services(service("a", engine, model="m"))
    await stack.start_all()
    _, _, headers = await ask(http, stack, headers={"x-request-id": "my-id-1"})
    assert headers["x-request-id"] == headers_of(engine.requests[0])["x-request-id"] == "my-id-1"
    _, _, headers = await ask(http, stack)
    assert headers["x-request-id"] == headers_of(engine.requests[1])["x-request-id"] != ""


async def test_api_keys_are_checked_and_do_not_reach_engines(stack, engines, http):
    import hashlib

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
    status, _, _ = await ask(http, stack, headers={"authorization": f"Bearer {key}"})
    assert status == 200
    seen = headers_of(engine.requests[0])
    assert "authorization" not in seen
    assert "x-inflight-tenant" not in seen
    # The operator makes the key for signatures when it starts, which may be later.
    gateway_key.write_text("secret")

    async def signed():
        await ask(http, stack, headers={"authorization": f"Bearer {key}"})
        return "x-inflight-tenant-signature" in headers_of(engine.requests[-1])

    await until(signed, "the tenant is signed", 10)
    assert headers_of(engine.requests[-1])["x-inflight-tenant"] == "acme"


async def test_requests_in_flight_are_counted_until_their_response_ends(stack, engines, http):
    engine = await engines("engine", "stream")
    stack.services(service("a", engine, model="m"))
    await stack.start_all()

    async def in_flight():
        return (await stack.state())["services"][0]["in_flight"]

    body = json.dumps({"model": "m", "stream": True}).encode()
    async with http.post(stack.url + "/v1/completions", data=body) as answer:
        await answer.content.readline()
        assert await in_flight() == 1
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")
    assert await until(lambda: _is_zero(in_flight), "no request is in flight", 2)


async def _is_zero(count):
    return await count() == 0

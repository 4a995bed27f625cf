"""Keys, limits and signed tenants through real Envoy, relay and picker, with stand-ins for engines."""

import asyncio
import random
import re
import time

import httpx
import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_base.manifest.names import GATEWAY_ANNOTATION
from inflight_base.signing import is_signed, tenant_key
from inflight_kubectl.access.resources import Service
from inflight_kubectl.engines.engine_access import PortForward
from inflight_kubectl.engines.gateway_view import gateway_view
from tests.gateway.client import ask, service
from tests.gateway.fake_engine import headers_of
from tests.gateway.gateway_stack import GatewayStack, until
from tests.gateway.tenants.things import secret
from tests.kubectl.fake_api import FakeApi
from tests.kubectl.objects import body
from tests.kubectl.test_gateway import GATEWAY, PODS, SERVICE, gateway_pod

GATEWAY_KEY = b"the gateway's key"


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def stack(tmp_path):
    stack = GatewayStack(tmp_path, relays=1)
    key = tmp_path / "key"
    key.write_bytes(GATEWAY_KEY)
    stack.picker_flags += ["--gateway-key-file", str(key)]
    yield stack
    stack.stop_all()


def write(stack, engine, tenants=(), **keys):
    """The service `a` with API keys. Args: keys: tenant -> its key."""
    data = {name: value.decode() for name, value in secret(**keys).items()}
    stack.services(
        service("a", engine, model="m", uid="u-1", api_keys_secret="keys", tenants=list(tenants)),
        secrets=[{"namespace": "default", "name": "keys", "data": data}],
    )


async def test_only_right_keys_pass_and_no_engine_sees_them(stack, engines, http):
    engine = await engines("engine")
    write(stack, engine, acme="ifk_1")
    await stack.start_all()
    forged = {"x-inflight-tenant": "other", "x-inflight-signature": "v2=0:00", "x-request-id": "r-1"}
    assert (await ask(http, stack, headers=bearer("ifk_1") | forged))[0] == 200
    assert (await ask(http, stack, headers={"api-key": "ifk_1", "x-request-id": "r-2"}))[0] == 200
    key = tenant_key(GATEWAY_KEY, ServiceKey("default", "a"), "u-1")
    for number, seen in enumerate(engine.requests, 1):
        headers = headers_of(seen)
        assert "authorization" not in headers
        assert "api-key" not in headers
        assert headers["x-inflight-tenant"] == "acme"
        message = f"acme\nr-{number}\n1".encode()
        assert is_signed([key.encode()], message, headers["x-inflight-signature"], time.time())
    for wrong in ({}, bearer("ifk_2"), bearer("ifk_1x"), {"authorization": "Basic ifk_1"}, {"x-inflight-attempt": "2"}):
        status, body, headers = await ask(http, stack, headers=wrong)
        assert (status, body["error"]["code"], headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
    assert len(engine.requests) == 2


async def test_keys_are_rotated_under_load_without_a_failure(stack, engines, http):
    engine = await engines("engine")
    write(stack, engine, acme="ifk_old")
    await stack.start_all()
    keys, answers, stop = ["ifk_old"], [], asyncio.Event()

    async def client():
        while not stop.is_set():
            answers.append((await ask(http, stack, headers=bearer(random.choice(keys))))[0])

    clients = [asyncio.create_task(client()) for _ in range(4)]
    write(stack, engine, acme="ifk_old", acme2="ifk_new")

    async def taken(key, status):
        return (await ask(http, stack, headers=bearer(key)))[0] == status

    await until(lambda: taken("ifk_new", 200), "the new key is taken")
    keys[:] = ["ifk_new"]
    await asyncio.sleep(0.2)
    write(stack, engine, acme2="ifk_new")
    await until(lambda: taken("ifk_old", 401), "the old key is refused")
    stop.set()
    await asyncio.gather(*clients)
    assert set(answers) == {200}
    assert len(answers) > 20


async def test_limits_are_exact_under_a_flood_and_clients_see_openais_headers(stack, engines, http):
    engine = await engines("engine")
    names = [f"acme-{number}" for number in range(10)]
    tenants = [{"name": name, "limits": {"requests_per_minute": 100}} for name in names]
    write(stack, engine, tenants, **{name: f"ifk_{name}" for name in names}, free="ifk_2")
    await stack.start_all()
    at_once = asyncio.Semaphore(20)

    async def one(name):
        async with at_once:
            return await ask(http, stack, headers=bearer(f"ifk_{name}"))

    async def decided(name):
        """Returns how many requests the picker has sent to engines, of all tenants, and refused, of one."""
        page, of_one = await stack.metrics(), f'reason="requests",service="a",tenant="{name}"'
        sent = re.findall(r"^inflight_gateway_picks_total\{.*\} (\S+)$", page, re.M)
        refused = re.findall(rf"^inflight_gateway_tenant_refused_total\{{.*{of_one}\}} (\S+)$", page, re.M)
        return sum(map(float, sent)), sum(map(float, refused))

    for name in names:
        before, _ = await decided(name)
        found = await asyncio.gather(*(one(name) for _ in range(300)))
        sent, not_sent = await decided(name)
        # A relay that hears nothing of its picker for 200 ms, as on a starved machine, decides by itself.
        if sent - before + not_sent == 300:
            break
    assert sorted(status for status, _, _ in found) == [200] * 100 + [429] * 200
    refused = next(one for one in found if one[0] == 429)
    assert refused[1]["error"]["code"] == "rate_limit_exceeded"
    assert 50 <= int(refused[2]["retry-after"]) <= 61
    passed = next(one for one in found if one[0] == 200)
    assert passed[2]["x-ratelimit-limit-requests"] == "100"
    assert 0 <= int(passed[2]["x-ratelimit-remaining-requests"]) < 100
    assert (await ask(http, stack, headers=bearer("ifk_2")))[0] == 200
    assert (sent - before, not_sent) == (100, 200)


async def test_concurrent_streams_are_exact_and_leave_room_when_they_end_or_are_left(stack, engines, http):
    engine = await engines("engine", "stream")
    engine.events = 1_000_000
    write(stack, engine, [{"name": "acme", "limits": {"concurrent_requests": 3}}], acme="ifk_1")
    await stack.start_all()

    async def stream():
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        answer = await http.post(
            f"{stack.url}/v1/chat/completions", json=body, headers=bearer("ifk_1") | {"host": "a.default"}
        )
        if answer.status == 200:
            await answer.content.readline()
        return answer

    found = [await stream() for _ in range(5)]
    assert [one.status for one in found] == [200, 200, 200, 429, 429]
    found[0].close()

    async def room():
        answer = await stream()
        found.append(answer)
        return answer.status == 200

    await until(room, "a stream that its client left makes room", 60)
    assert (await stream()).status == 429
    for one in found:
        one.close()


async def test_a_body_that_the_gateway_cannot_count_reaches_no_engine(stack, engines, http):
    engine = await engines("engine")
    write(stack, engine, acme="ifk_1")
    await stack.start_all()
    body = '{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
    not_a_number = body.replace("}]", '}], "temperature": NaN')
    for data in (*(body.encode(each) for each in ("utf-8-sig", "utf-16", "utf-32")), not_a_number.encode()):
        status, answer, _ = await ask(http, stack, headers=bearer("ifk_1"), data=data)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert not engine.requests
    assert (await ask(http, stack, headers=bearer("ifk_1"), data=body.encode()))[0] == 200


async def test_each_of_several_answers_is_charged(stack, engines, http):
    engine = await engines("engine")
    write(stack, engine, [{"name": "acme", "limits": {"tokens_per_minute": 1000}}], acme="ifk_1")
    await stack.start_all()
    status, _, headers = await ask(http, stack, headers=bearer("ifk_1"), n=8, max_tokens=100)
    assert status == 200
    assert 100 < int(headers["x-ratelimit-remaining-tokens"]) < 200


async def test_without_the_gateway_key_services_with_keys_are_closed_until_it_is_there(stack, engines, http):
    engine = await engines("engine")
    key = stack.folder / "key"
    key.unlink()
    write(stack, engine, acme="ifk_1")
    await stack.start_all()
    status, answer, headers = await ask(http, stack, headers=bearer("ifk_1"))
    assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "gateway_key_unavailable", "5")
    assert not engine.requests
    key.write_bytes(GATEWAY_KEY)

    async def served():
        return (await ask(http, stack, headers=bearer("ifk_1")))[0] == 200

    await until(served, "the key is read", 60)


async def test_malformed_requests_never_make_an_error_of_the_server(stack, engines, http):
    engine = await engines("engine")
    write(stack, engine, acme="ifk_1")
    await stack.start_all()
    some = random.Random(0)
    credentials = ["Bearer", "Bearer ", "bearer ifk_1 ifk_1", "ifk_1", "Bearer " + "x" * 5000, "Bearer \x80\xff"]
    bodies = [b"", b"{", b"[]", b"null", b'{"model": 3}', b'{"messages": "x"}', b"\xff" * 50, b'{"max_tokens": -1}']
    for _ in range(100):
        headers = {"authorization": some.choice(credentials)}
        status, _, _ = await ask(http, stack, headers=headers, data=some.choice(bodies))
        assert 400 <= status < 500
    assert "Traceback" not in stack.log("picker")
    assert (await ask(http, stack, headers=bearer("ifk_1")))[0] == 200


async def test_the_plugin_shows_the_picks_and_the_held_requests_of_the_picker(stack, engines, http, monkeypatch):
    engine = await engines("engine")
    write(stack, engine, acme="ifk_1")
    await stack.start_all()
    assert (await ask(http, stack, headers=bearer("ifk_1") | {"x-request-id": "r-1"}))[0] == 200
    stack.services(service("a", model="m"))

    async def asleep():
        return 'inflight_gateway_endpoints{namespace="default",service="a"} 0.0' in await stack.metrics()

    await until(asleep, "the picker knows of no engine", 60)
    held = asyncio.create_task(ask(http, stack))
    api = FakeApi(body("a", spec=GATEWAY))
    api.objects[SERVICE.replace("chat", "a")] = {
        "metadata": {"annotations": {GATEWAY_ANNOTATION: "gw.inflight-system.svc.cluster.local"}}
    }
    api.objects[f"{PODS}/gw-0"] = gateway_pod("gw-0")
    monkeypatch.setattr(PortForward, "client", lambda *_, **__: httpx.Client(base_url=stack.local_url))
    found = Service.of(body("a", spec=GATEWAY))

    async def seen():
        view = await asyncio.to_thread(gateway_view, api.target(), found)
        return view if view.problem or (view.held and view.picks) else None

    view = await until(seen, "the view has both", 60)
    assert (view.problem, view.pods, view.held) == (None, ("gw-0",), 1)
    assert (view.picks[0].request_id, view.picks[0].tenant, view.picks[0].status) == ("r-1", "acme", 200)
    stack.services(service("a", engine, model="m"))
    assert (await held)[0] == 200

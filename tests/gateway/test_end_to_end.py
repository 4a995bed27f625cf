"""The whole gateway as processes: Envoy, relays and picker, with stand-ins for engines."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from inflight_gateway.relay.shared import Tuning
from tests.gateway.client import ask, service
from tests.gateway.fake_engine import headers_of
from tests.gateway.gateway_stack import GatewayStack, until
from tests.gateway.proxy import tokens
from tests.gateway.proxy.tokens import Issuer


async def test_a_request_is_served_reported_and_logged(tmp_path, engines, http):
    engine = await engines("engine")
    stack = GatewayStack(tmp_path, relays=2)
    stack.services(service("a", engine, model="m"))
    try:
        await stack.start_all()
        status, body, headers = await ask(http, stack, headers={"x-request-id": "one"})
        assert (status, body) == (200, {"engine": "engine"})
        assert headers["x-request-id"] == "one"
        assert not [name for name in headers if name.lower().startswith("x-inflight")]
        assert headers_of(engine.requests[0])["x-inflight-progress"] == "1"

        async def counted():
            return 'requests_total{namespace="default",service="a",status="200"} 1.0' in await stack.metrics()

        await until(counted, "the relay's report is in the metrics", 60)
        line = next(json.loads(line) for line in stack.log("picker").splitlines() if '"request_id":"one"' in line)
        assert line["service"] == "default/a"
        assert line["endpoint"] == engine.address
        assert (line["status"], line["attempts"]) == (200, 1)
        url = f"{stack.local_url}/v1/picks?namespace=default&service=a"
        async with http.get(url) as answer:
            assert (await answer.json())["picks"][0]["request_id"] == "one"
    finally:
        stack.stop_all()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_connections_of_a_killed_relay_worker_wait_for_the_next_one(tmp_path, engines, http):
    engine = await engines("engine")
    stack = GatewayStack(tmp_path, relays=1)
    stack.services(service("a", engine, model="m"))
    try:
        await stack.start_all()
        pid = stack.processes["relay"].pid
        for _ in range(3):
            assert (await ask(http, stack))[0] == 200
            (worker,) = children(pid)
            os.kill(worker, signal.SIGKILL)
            # The parent listens: nothing is refused until the next worker accepts.
            assert (await ask(http, stack))[:2] == (200, {"engine": "engine"})
    finally:
        stack.stop_all()


async def test_without_a_picker_relays_serve_also_with_keys_and_its_successor_gets_their_usage(tmp_path, engines, http):
    engine = await engines("engine", "progress")
    engine.tick = 0.1
    stack = GatewayStack(tmp_path, relays=1)
    key_file = tmp_path / "key"
    key_file.write_bytes(b"k" * 43)
    stack.picker_flags = ["--gateway-key-file", str(key_file)]
    digest = hashlib.sha256(b"ifk_1").hexdigest()
    keys = {"name": "keys", "data": {"k1": json.dumps({"tenant": "acme", "sha256": digest})}}
    stack.services(service("a", engine, model="m", api_keys_secret="keys"), secrets=[keys])
    right, wrong = {"authorization": "Bearer ifk_1"}, {"authorization": "Bearer ifk_2"}
    asked = {"stream": True, "max_tokens": 8, "seed": 1}
    try:
        await stack.start_all()
        running = asyncio.create_task(ask(http, stack, headers=right, **asked))
        await asyncio.sleep(0.3)
        stack.processes["picker"].kill()
        await asyncio.to_thread(stack.processes["picker"].wait, 60)
        took = []
        while not took or (took[-1] >= 0.5 and len(took) < 20):  # on a busy machine, one of them
            begun = time.monotonic()
            assert (await ask(http, stack, headers=wrong, **asked))[0] == 401
            took.append(time.monotonic() - begun)
        assert took[-1] < 0.5
        alone = await ask(http, stack, headers=right, **asked)
        assert alone[0] == (await running)[0] == 200
        assert alone[1] == (await running)[1]
        assert headers_of(engine.requests[-1])["x-inflight-tenant"] == "acme"
        stack.start_picker()
        tokens = 'tokens_total{kind="completion",namespace="default",service="a",tenant="acme"} 16.0'

        async def counted():
            try:
                return tokens in await stack.metrics()
            except aiohttp.ClientError:
                return False

        await until(counted, "the new picker has the tokens of both answers", 60)
    finally:
        stack.stop_all()


async def test_an_engine_that_hangs_before_its_head_is_given_up(tmp_path, engines, http):
    hanging, good = await engines("hanging", "hang"), await engines("good")
    stack = GatewayStack(tmp_path, relays=1)
    stack.services(service("a", hanging, good, model="m"))
    try:
        await stack.start_all()
        begin = time.monotonic()
        answers = await asyncio.gather(*(ask(http, stack) for _ in range(8)))
        assert {(status, body["engine"]) for status, body, _ in answers} == {(200, "good")}
        assert hanging.requests
        assert time.monotonic() - begin < Tuning().head_s + 60
    finally:
        stack.stop_all()


async def test_an_answer_goes_on_at_another_engine_when_its_own_dies(tmp_path, engines, http):
    cuts = []
    first, second = await engines("first", "progress"), await engines("second", "progress")
    first.cuts = second.cuts = cuts
    first.tick = second.tick = 0.01
    stack = GatewayStack(tmp_path, relays=1)
    stack.services(service("a", first, second, model="m"))
    try:
        await stack.start_all()
        for fields in ({"stream": True}, {"stream": False}):
            asked = {"seed": 7, "max_tokens": 16, **fields}
            undisturbed = await ask(http, stack, **asked)
            cuts.append(9)
            headers = {"x-request-id": f"cut-{fields['stream']}"}
            cut = await ask(http, stack, headers=headers, **asked)
            assert cuts == []
            assert cut[0] == 200
            if fields["stream"]:
                assert cut[1] == undisturbed[1]
            else:  # its time of creation came with the whole answer, which nobody got
                assert cut[1]["choices"] == undisturbed[1]["choices"]
        continuations = 'continuations_total{namespace="default",service="a"} '

        async def counted():
            return continuations + "2.0" in await stack.metrics()

        await until(counted, "the continuations are in the metrics", 60)
        line = next(json.loads(line) for line in stack.log("picker").splitlines() if '"cut-True"' in line)
        assert (line["continuations"], line["attempts"], line["status"]) == (1, 2, 200)
        assert line["completion_tokens"] == 16
    finally:
        stack.stop_all()


async def test_answers_of_a_service_without_continuation_pass_as_engines_write_them(tmp_path, engines, http):
    engine = await engines("engine", "stream")
    engine.events = 3
    stack = GatewayStack(tmp_path, relays=1)
    stack.services(service("a", engine, model="m", continuation=False))
    try:
        await stack.start_all()
        status, body, headers = await ask(http, stack, stream=True)
        assert (status, headers["x-engine"]) == (200, "engine")
        assert body.startswith("data: engine 0")
        assert body.endswith("data: [DONE]\n\n")
        sent = headers_of(engine.requests[0])
        assert "x-envoy-expected-rq-timeout-ms" not in sent
    finally:
        stack.stop_all()


@pytest.mark.parametrize("most", [1, 2])
async def test_max_attempts_bounds_the_replicas_of_a_request_over_envoy_and_relay(tmp_path, engines, http, most):
    some = [await engines(f"engine-{number}", "progress") for number in range(4)]
    for engine in some:
        engine.cuts = [0] * 10
    stack = GatewayStack(tmp_path, relays=1)
    stack.services(service("a", *some, model="m", max_attempts=most))
    try:
        await stack.start_all()
        status, body, _ = await ask(http, stack, stream=True, max_tokens=5)
        assert (status, body["error"]["code"]) == (502, "engine_lost" if most == 1 else "engines_died")
        assert sum(len(engine.requests) for engine in some) == most
    finally:
        stack.stop_all()


async def test_a_token_is_a_credential_beside_api_keys(tmp_path, engines, http):
    engine, issuer = await engines("engine"), Issuer()
    (tmp_path / "jwks.json").write_text(issuer.jwks)
    key_file = tmp_path / "key"
    key_file.write_bytes(b"k" * 43)
    stack = GatewayStack(tmp_path)
    stack.envoy_flags = ["--jwt-issuer", tokens.NAME, "--jwks-file", str(tmp_path / "jwks.json")]
    stack.picker_flags = ["--gateway-key-file", str(key_file)]
    digest = hashlib.sha256(b"ifk_1").hexdigest()
    keys = {"name": "keys", "data": {"k1": json.dumps({"tenant": "acme", "sha256": digest})}}
    config = {"model": "m", "api_keys_secret": "keys", "jwt_tenants": ["search"]}
    stack.services(service("a", engine, **config), secrets=[keys])
    try:
        await stack.start_all()
        for credential, tenant in ((issuer.token(tenant="search"), "search"), ("ifk_1", "acme")):
            assert (await ask(http, stack, headers={"authorization": f"Bearer {credential}"}))[0] == 200
            sent = headers_of(engine.requests[-1])
            assert sent["x-inflight-tenant"] == tenant
            assert "authorization" not in sent
            assert "x-inflight-jwt-tenant" not in sent
        refused = [
            issuer.token(tenant="other"),
            issuer.token(),
            issuer.token(tenant=""),
            Issuer().token(tenant="search"),
        ]
        for credential in (*refused, "ifk_2"):
            headers = {"authorization": f"Bearer {credential}", "x-inflight-jwt-tenant": "search"}
            assert (await ask(http, stack, headers=headers))[0] in (401, 403)
        assert (await ask(http, stack, headers={"x-inflight-jwt-tenant": "search"}))[0] == 401
        assert len(engine.requests) == 2
    finally:
        stack.stop_all()

"""Real Envoy and picker, with stand-ins for engines: where requests go."""

from __future__ import annotations

import json

from tests.gateway.fake_engine import headers_of

CHAT = "/v1/chat/completions"


def service(name, *engines, **fields):
    return {"name": name, "endpoints": [engine.address for engine in engines], **fields}


async def ask(http, stack, model="m", *, host=None, path=CHAT, headers=None, **fields):
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}
    async with http.post(
        stack.url + path, json=body, headers={**({"Host": host} if host else {}), **(headers or {})}
    ) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text.startswith("{") else text, answer.headers


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

"""Real Envoy: what goes on while the picker is gone, endpoints change, or the gateway ends."""

from __future__ import annotations

import asyncio
import json
import signal

from tests.gateway.client import ask, service
from tests.gateway.gateway_stack import until

STREAM = json.dumps({"model": "m", "stream": True}).encode()
A = {"Host": "a.default"}


def numbers(text: bytes) -> list[int]:
    """Numbers of the events in a stand-in's stream."""
    return [int(line.split()[2]) for line in text.split(b"\n\n") if line.startswith(b"data: e")]


async def test_without_a_picker_streams_go_on_and_new_requests_go_by_least_requests(stack, engines, http):
    first, second = await engines("e1", "stream"), await engines("e2", "stream")
    keyed = await engines("e3")
    first.may_end.clear()
    second.may_end.clear()
    stack.services(service("a", first, second, model="m"), service("b", keyed, model="n", api_keys_secret="keys"))
    await stack.start_all()
    streams = []

    async def stream(begins):
        async with http.post(f"{stack.url}/v1/completions", data=STREAM, headers=A) as answer:
            assert answer.status == 200
            begin = await answer.content.readline()
            begins.set()
            assert numbers(begin + await answer.content.read()) == list(range(40))

    async with http.post(f"{stack.url}/v1/completions", data=STREAM, headers=A) as open_stream:
        begin = await open_stream.content.readline()
        stack.signal("picker", signal.SIGKILL)
        stack.processes["picker"].wait()

        for _ in range(4):
            begins = asyncio.Event()
            streams.append(asyncio.create_task(stream(begins)))
            await asyncio.wait_for(begins.wait(), 60)
        first.may_end.set()
        second.may_end.set()
        await asyncio.gather(*streams)
        rest = await open_stream.content.read()
        assert numbers(begin + rest) == list(range(40))
    # One of them had a request of the picker's before.
    assert {len(first.requests), len(second.requests)} == {2, 3}
    # Keys that no picker has sent cannot be checked.
    status, body, _ = await ask(http, stack, host="b.default")
    assert (status, body["error"]["code"]) == (503, "api_keys_unavailable")
    assert not keyed.requests
    async with http.get(f"{stack.url}/metrics", headers=A) as answer:
        assert answer.status == 404

    stack.start_picker()
    await until(stack.ready, "the new picker is ready")
    first.answer = second.answer = "ok"
    status, _, _ = await ask(http, stack)
    assert status == 200
    assert "inflight_gateway_picks_total" in await stack.metrics()


async def test_endpoints_come_and_go_under_streams(stack, engines, http):
    old, new = await engines("e1", "stream"), await engines("e2")
    stack.services(service("a", old, model="m"))
    await stack.start_all()
    async with http.post(f"{stack.url}/v1/completions", data=STREAM, headers=A) as open_stream:
        begin = await open_stream.content.readline()
        stack.services(service("a", new, model="m"))

        await until(lambda: new.seen, "the new endpoint is scraped", 60)
        status, body, _ = await ask(http, stack)
        assert (status, body) == (200, {"engine": "e2"})
        rest = await open_stream.content.read()
        assert numbers(begin + rest) == list(range(40))


async def test_sigterm_drains(stack, engines, http):
    engine = await engines("e1", "stream")
    engine.may_end.clear()
    stack.services(service("a", engine, model="m"))
    stack.picker_flags = ["--drain-min", "0.5"]
    await stack.start_all()
    async with http.post(f"{stack.url}/v1/completions", data=STREAM, headers=A) as open_stream:
        begin = await open_stream.content.readline()
        stack.signal("picker", signal.SIGTERM)

        async def not_ready():
            return not await stack.ready()

        await until(not_ready, "the gateway is not ready", 60)
        engine.answer = "ok"
        async with http.post(f"{stack.url}/v1/completions", data=STREAM, headers=A) as answer:
            assert answer.status == 200
            assert answer.headers.get("connection") == "close"
        await asyncio.sleep(1)
        assert stack.processes["picker"].poll() is None
        engine.may_end.set()
        rest = await open_stream.content.read()
        assert numbers(begin + rest) == list(range(40))
    assert await asyncio.to_thread(stack.processes["picker"].wait, 60) == 0
    assert stack.processes["envoy"].poll() is None
    assert "drained in" in stack.log("picker")


async def test_the_drain_ends_when_its_time_is_over(stack, engines, http):
    engine = await engines("e1", "stream")
    engine.events = 400
    stack.services(service("a", engine, model="m"))
    stack.picker_flags = ["--drain-min", "0", "--drain-max", "1"]
    await stack.start_all()
    async with http.post(f"{stack.url}/v1/completions", data=STREAM, headers=A) as open_stream:
        await open_stream.content.readline()
        stack.signal("picker", signal.SIGTERM)
        assert await asyncio.to_thread(stack.processes["picker"].wait, 60) == 0
    assert "1 requests are cut off" in stack.log("picker")

"""A real engine behind a whole gateway, whose index of prefixes follows the engine's KV cache events."""

import asyncio
import contextlib
import json
import re

import httpx
import pytest

from inflight_gateway.request.prefix import BLOCK_TOKENS, estimated_tokens
from tests.engine.server.real_server import CERTIFICATES, RealServer
from tests.gateway.gateway_stack import GatewayStack, until
from tools.measure.served import free_port

BLOCK, NUM_BLOCKS = 16, 64
SUBJECTS = ("alpha", "alpha", "beta", "gamma", "alpha", "delta", "gamma", "epsilon", "zeta", "alpha", "alpha")


@pytest.fixture
async def stack(tmp_path):
    """A gateway with an engine behind it, whose cache holds three of the prompts."""
    ports = [free_port(), free_port()]
    events = {"endpoint": f"tcp://*:{ports[0]}", "replay_endpoint": f"tcp://*:{ports[1]}"}
    small = f"--max-num-seqs 4 --block-size {BLOCK} --num-kv-blocks {NUM_BLOCKS} --max-model-len 1000"
    stack = GatewayStack(tmp_path / "gateway")
    flag = json.dumps({"enable_kv_cache_events": True, **events})
    with contextlib.closing(RealServer(tmp_path, *small.split(), "--kv-events-config", flag)) as engine:
        await asyncio.to_thread(engine.wait_ready)
        address = engine.url.removeprefix("http://")
        stack.services({"name": "smollm2", "endpoints": [address], "kv_events": ports})
        try:
            yield await stack.start_all()
        finally:
            stack.stop_all()


async def counts(stack):
    """Requests that ended, their prompt tokens, and the cached ones: predicted by the exact index, and found."""
    page = await stack.metrics()

    def value(pattern):
        found = re.search(rf"^inflight_gateway_{pattern} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0

    cached = [value(rf'cached_tokens_{kind}_total\{{index="exact"[^}}]*\}}') for kind in ("predicted", "found")]
    return value(r"requests_total\{[^}]*\}"), value(r"prompt_tokens_total\{[^}]*\}"), *cached


async def ask(stack, prompt, *, stream):
    """Sends a request, and returns what it has added to `counts`."""
    before = await counts(stack)
    async with httpx.AsyncClient(verify=CERTIFICATES, timeout=120) as http:
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": 2, "stream": stream}
        answer = await http.post(f"{stack.url}/v1/completions", json=body, headers={"host": "smollm2.default"})
    assert answer.status_code == 200, answer.text

    async def ended():
        after = await counts(stack)
        return after if after[0] > before[0] else None

    return [new - old for new, old in zip(await until(ended, "the report"), before, strict=True)]


@pytest.mark.slow
async def test_the_gateway_predicts_what_the_engine_finds_while_prompts_come_and_are_evicted(stack):
    async def state():
        found = re.search(r'kv_event_engines\{[^}]*state="(\w+)"\} 1', await stack.metrics())
        return found and found[1]

    async def connected():
        return await state() == "unproven"

    async def exact():
        return await state() == "exact"

    await until(connected, "the engine's events")
    await ask(stack, "first " * 300, stream=True)
    await until(exact, "an exact index")
    hits = []
    for number, subject in enumerate(SUBJECTS):
        prompt = f"{subject} " * 300
        _, tokens, predicted, found = await ask(stack, prompt, stream=bool(number % 2))
        # The index counts in hashes of text, the engine in blocks.
        per_estimated = tokens / estimated_tokens(prompt)
        assert -BLOCK <= found - predicted * per_estimated < BLOCK_TOKENS * per_estimated + BLOCK, (number, subject)
        hits.append(found > 200)
    assert hits[1]
    assert hits[-1]
    assert not hits[9]  # evicted

"""A client that leaves, at any moment of any kind of request, leaves nothing behind."""

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.request import FinishReason
from tests.engine.server.fake_engine import connected, server_config, until

MESSAGES = [{"role": "user", "content": "?"}]
BODIES = [
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 3}),
    ("/v1/completions", {"prompt": ["a", "b"], "stop": "xy"}),
    ("/v1/generate", {"prompt": "a"}),
    ("/v1/responses", {"model": "fake", "input": "?"}),
    ("/v1/messages", {"model": "fake", "max_tokens": 9, "messages": MESSAGES}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}),
]
MOMENTS = st.sampled_from(["body", "sent", "queued", "admitted", "begun", "one ended", "all ended"])


async def leave(path, body, moment, stream, relayed, tokens):
    """Send a request and leave; the number of requests and responses that are left."""
    service, engine, app = await connected(server_config())
    left, read, sent = asyncio.Event(), asyncio.Event(), []
    if stream and path.rpartition("/")[2] not in ("embeddings", "score", "rerank"):
        body = {**body, "stream": True}

    async def receive():
        if not read.is_set():
            read.set()
            if moment == "body":
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        if moment != "sent":
            await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", b"application/json"), *([(b"x-inflight-progress", b"1")] if relayed else [])]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    call = asyncio.create_task(app({**scope, "headers": headers, "asgi": {"version": "3.0"}}, receive, send))
    if moment not in ("body", "sent"):
        await until(lambda: engine.requests or call.done(), 20)
        await asyncio.sleep(0)
        ids = [*engine.requests]
        if moment != "queued":
            engine.report(admitted=[(request_id, slot) for slot, request_id in enumerate(ids)], num_running=len(ids))
        if moment in ("begun", "one ended", "all ended"):
            for token in tokens:
                engine.report(tokens=dict.fromkeys(range(len(ids)), token))
        ended = {"one ended": ids[:1], "all ended": ids}.get(moment, [])
        if ended:
            pooled = [(slot, [1.0, 0.0]) for slot in range(len(ended))]
            engine.report(pooled=pooled, finished=[(request_id, FinishReason.STOP) for request_id in ended])
        for _ in range(3):
            await asyncio.sleep(0)
    left.set()
    async with asyncio.timeout(20):
        await asyncio.gather(call, return_exceptions=moment == "body")
    await until(lambda: not len(service.registry), 20)
    waiting = service.admission.waiting
    return len(service.heartbeats), sum(waiting.by_class.values()), waiting.num_tokens


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(BODIES), MOMENTS, st.booleans(), st.booleans(), st.lists(st.sampled_from(b"axy\xc3"), max_size=4)
)
def test_a_client_that_leaves_leaves_nothing_behind(request_, moment, stream, relayed, tokens):
    path, body = request_
    assert asyncio.run(leave(path, body, moment, stream, relayed, tokens)) == (0, 0, 0)

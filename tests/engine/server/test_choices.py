"""Several answers to one call: `n`, and lists of prompts. Each answer is a request of its own in the engine."""

import asyncio
import json

import pytest

from inflight_engine.request import FinishReason
from inflight_engine.server.requests.prepare import seed_for
from inflight_settings.engine import EngineConfig
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import until
from tests.engine.server.test_requests import events, metrics, usage

pytestmark = pytest.mark.usefixtures("virtual_clock")

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/completions",
    "raw_path": b"/v1/completions",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json")],
}


def start(fake, path="/v1/completions", **body):
    return asyncio.create_task(fake.post(path, **({} if "chat" in path else {"prompt": "hello"}), **body))


async def arrived(fake, count):
    await until(lambda: len(fake.engine.requests) == count)
    return fake.engine.requests


def prompt_of(request):
    return bytes(request.prompt_token_ids[::4])


@in_virtual_time
async def test_n_answers_come_in_order_of_their_index_and_the_prompt_counts_once(make_fake):
    fake = await make_fake()
    call = start(fake, n=3)
    await arrived(fake, 3)
    for request_id, text in ((2, "cc"), (0, "a"), (1, "bbb")):
        fake.engine.answer(request_id, text)
    answer = (await call).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "a"), (1, "bbb"), (2, "cc")]
    assert answer["usage"] == usage(5, 6)


@in_virtual_time
async def test_prompts_times_n_are_indexed_prompt_by_prompt(make_fake):
    fake = await make_fake()
    call = asyncio.create_task(fake.post("/v1/completions", prompt=["ab", "cde"], n=2, echo=False))
    requests = await arrived(fake, 4)
    assert [prompt_of(requests[i]) for i in range(4)] == [b"ab", b"ab", b"cde", b"cde"]
    for request_id in range(4):
        fake.engine.answer(request_id, "wxyz"[request_id])
    answer = (await call).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "w"), (1, "x"), (2, "y"), (3, "z")]
    assert answer["usage"] == usage(5, 4)


@in_virtual_time
async def test_lists_of_token_ids_are_prompts(make_fake):
    fake = await make_fake()
    call = asyncio.create_task(fake.post("/v1/completions", prompt=[[1, 2], [3]]))
    requests = await arrived(fake, 2)
    assert [prompt_of(requests[i]) for i in range(2)] == [b"\1\2", b"\3"]
    for request_id in range(2):
        fake.engine.answer(request_id, "x")
    assert len((await call).json()["choices"]) == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/generate"])
@in_virtual_time
async def test_sample_i_takes_seed_plus_i(make_fake, path):
    fake = await make_fake()
    call = start(fake, path, n=3, seed=2**63 - 2, temperature=0, **(CHAT if "chat" in path else {}))
    requests = await arrived(fake, 3)
    assert [requests[i].sampling.seed for i in range(3)] == [2**63 - 2, 2**63 - 1, 0]
    for request_id in range(3):
        fake.engine.answer(request_id, "x")
    assert len((await call).json()["choices"]) == 3


@in_virtual_time
async def test_without_a_seed_samples_have_different_streams(make_fake):
    fake = await make_fake()
    call = start(fake, n=4)
    requests = await arrived(fake, 4)
    assert len({request.sampling.seed for request in requests.values()}) == 4
    for request_id in range(4):
        fake.engine.answer(request_id, "x")
    await call


async def drawn_seeds(make_fake, **fields):
    fake = await make_fake(engine=EngineConfig("fake", **fields))
    call = start(fake, n=2)
    requests = await arrived(fake, 2)
    for request_id in range(2):
        fake.engine.answer(request_id, "x")
    await call
    return [each.sampling.seed for each in requests.values()]


@in_virtual_time
async def test_each_start_of_an_engine_draws_other_streams_unless_a_seed_is_set(make_fake):
    first, second = [await drawn_seeds(make_fake) for _ in range(2)]
    assert not {*first} & {*second}
    first, second = [await drawn_seeds(make_fake, seed=7) for _ in range(2)]
    assert first == second == [seed_for(7, 0), seed_for(7, 1)]


@in_virtual_time
async def test_chat_stream_interleaves_choices_each_with_role_and_end(make_fake):
    fake = await make_fake()
    call = start(fake, "/v1/chat/completions", n=2, stream=True, stream_options={"include_usage": True}, **CHAT)
    await arrived(fake, 2)
    fake.engine.report(admitted=[(0, 0), (1, 1)], tokens={0: ord("a"), 1: ord("x")})
    await asyncio.sleep(0.05)
    fake.engine.report(tokens={0: ord("b"), 1: ord("y")}, finished=[(1, FinishReason.LENGTH)])
    await asyncio.sleep(0.05)
    fake.engine.report(tokens={0: ord("c")}, finished=[(0, FinishReason.STOP)])
    *chunks, done = events((await call).text)
    assert done == "[DONE]"
    *chunks, last = map(json.loads, chunks)
    assert last["usage"] == usage(8, 5)
    by_index = {0: [], 1: []}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        by_index[choice["index"]].append(choice)
    for index, text, reason in ((0, "abc", "stop"), (1, "xy", "length")):
        first, *middle, last = by_index[index]
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"]["content"] for choice in middle) == text
        assert (last["delta"], last["finish_reason"]) == ({}, reason)


@in_virtual_time
async def test_each_choice_has_its_own_stop_strings(make_fake):
    fake = await make_fake()
    call = start(fake, n=2, stop="END")
    await arrived(fake, 2)
    fake.engine.report(admitted=[(0, 0), (1, 1)])
    for left, right in zip(b"one END!!", b"two EN. 3", strict=True):
        fake.engine.report(tokens={0: left, 1: right})
    fake.engine.report(finished=[(1, FinishReason.LENGTH)])
    choices = (await call).json()["choices"]
    assert [(c["text"], c["finish_reason"]) for c in choices] == [("one ", "stop"), ("two EN. 3", "length")]
    assert [(c.request_id, c.reason) for c in fake.engine.cancels] == [(0, FinishReason.STOP)]


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_one_failed_choice_fails_the_answer_and_ends_the_others(make_fake, stream):
    fake = await make_fake()
    call = start(fake, n=3, stream=stream)
    await arrived(fake, 3)
    fake.engine.report(admitted=[(0, 0), (1, 1)], tokens={0: ord("a")})
    await until(lambda: fake.service.counts.generation_tokens == 1)
    await asyncio.sleep(0.02)
    fake.engine.report(finished=[(1, FinishReason.ERROR)])
    answer = await call
    if stream:
        assert json.loads(events(answer.text)[-1])["error"]["code"] == "engine_error"
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
    await until(lambda: not len(fake.service.registry))
    assert sorted(c.request_id for c in fake.engine.cancels) == [0, 2]


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_client_that_leaves_ends_all_its_choices(make_fake, stream):
    fake = await make_fake()
    body = json.dumps({"prompt": "hello", "n": 3, "stream": stream}).encode()
    left, sent = asyncio.Event(), []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if parts:
            return parts.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    serving = asyncio.create_task(fake.app(dict(SCOPE), receive, send))
    await arrived(fake, 3)
    fake.engine.report(admitted=[(0, 0)], tokens={0: ord("a")})
    await until(lambda: fake.service.counts.generation_tokens == 1)
    left.set()
    await asyncio.wait_for(serving, 60)
    await until(lambda: not len(fake.service.registry))
    assert {(c.request_id, c.reason) for c in fake.engine.cancels} == {(i, FinishReason.ABORT) for i in range(3)}
    assert not any(b"[DONE]" in message.get("body", b"") for message in sent)
    assert (await metrics(fake))["inflight_requests_cancelled_total"] == 3


@in_virtual_time
async def test_call_whose_choices_do_not_fit_the_queue_is_refused_whole(make_fake):
    fake = await make_fake(max_queued_requests=4)
    first = start(fake, n=3)
    await arrived(fake, 3)
    refused = await start(fake, n=2)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
    several = await fake.post("/v1/completions", prompt=["a", "b"])
    assert several.status_code == 503
    never = await start(fake, n=5)
    assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
    many = await fake.post("/v1/completions", prompt=["a"] * 5)
    assert (many.status_code, many.json()["error"]["param"]) == (400, "prompt")
    assert len(fake.engine.requests) == 3
    last = start(fake)
    await arrived(fake, 4)
    for request_id in range(4):
        fake.engine.answer(request_id, "x")
    assert [(await call).status_code for call in (first, last)] == [200, 200]


@in_virtual_time
async def test_token_bound_counts_the_prompt_of_each_choice(make_fake):
    fake = await make_fake(max_queued_requests=8, max_queued_tokens=12)
    never = await start(fake, n=3)
    assert (never.status_code, never.json()["error"]["param"]) == (400, "prompt")
    long = await start(fake, "/v1/chat/completions", messages=[{"role": "user", "content": "hello and more"}])
    assert (long.status_code, long.json()["error"]["param"]) == (400, "messages")
    call = start(fake, n=2)
    await arrived(fake, 2)
    assert (await start(fake)).status_code == 503
    for request_id in fake.engine.requests:
        fake.engine.answer(request_id, "x")
    assert (await call).status_code == 200


@in_virtual_time
async def test_best_of_equal_to_n_asks_for_nothing(make_fake):
    fake = await make_fake()
    call = start(fake, n=2, best_of=2)
    await arrived(fake, 2)
    for request_id in range(2):
        fake.engine.answer(request_id, "x")
    assert (await call).status_code == 200


@in_virtual_time
async def test_generate_stream_says_whose_tokens_they_are(make_fake):
    fake = await make_fake()
    call = start(fake, "/v1/generate", n=2, stream=True)
    await arrived(fake, 2)
    fake.engine.report(admitted=[(0, 0), (1, 1)], tokens={0: ord("a"), 1: ord("b")})
    fake.engine.report(finished=[(0, FinishReason.STOP), (1, FinishReason.LENGTH)])
    *chunks, done = events((await call).text)
    assert done == "[DONE]"
    tokens = {0: [], 1: []}
    for chunk in map(json.loads, chunks):
        tokens[chunk["index"]] += chunk["tokens"]
    assert tokens == {0: [97], 1: [98]}


@in_virtual_time
async def test_what_ends_while_the_first_send_waits_loses_and_repeats_nothing(make_fake):
    """A connection may be slow to take the first bytes, as after a long answer before on the same one."""
    fake = await make_fake()
    body = json.dumps({"prompt": "hello", "n": 2, "stream": True}).encode()
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    taken, sent = asyncio.Event(), []

    async def receive():
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)
        if message["type"] == "http.response.start":
            await taken.wait()

    serving = asyncio.create_task(fake.app(dict(SCOPE), receive, send))
    await arrived(fake, 2)
    fake.engine.report(admitted=[(0, 0), (1, 1)], tokens={0: ord("a")})
    await until(lambda: sent)
    fake.engine.report(tokens={0: ord("b"), 1: ord("x")}, finished=[(0, FinishReason.STOP), (1, FinishReason.LENGTH)])
    await until(lambda: not len(fake.service.registry))
    taken.set()
    await asyncio.wait_for(serving, 60)
    *chunks, done = events(b"".join(message.get("body", b"") for message in sent).decode())
    choices = [choice for chunk in map(json.loads, chunks) for choice in chunk["choices"]]
    for index, text, reason in ((0, "ab", "stop"), (1, "x", "length")):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == text
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == [reason]
    assert done == "[DONE]"

"""A request's way through the API process, against a fake engine: bounds, timeouts, cancels, streams."""

import asyncio
import gc
import json
import time

import pytest

from inflight_engine.messages import Loading
from inflight_engine.request import FinishReason
from inflight_engine.server import lifecycle
from inflight_engine.server.http.health import HELD_SECONDS
from inflight_engine.server.http.middleware import OpenResponses
from inflight_engine.server.requests.generation import Generation
from inflight_operator.render.engines.inflight import engine_probes
from inflight_settings.engine import EngineConfig
from inflight_settings.limits import LimitsInForce
from inflight_settings.scheduling import ServiceClass
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import CAPACITY, EOS, READY, ByteTokenizer, until

pytestmark = pytest.mark.usefixtures("virtual_clock")


def events(text):
    """The data of server-sent events."""
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]


def usage(prompt, completion, cached=0):
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    details = {"prompt_tokens_details": {"cached_tokens": cached}, "completion_tokens_details": {"reasoning_tokens": 0}}
    return counts | details


def num_generations():
    gc.collect()
    # By type: `isinstance` would ask proxies of libraries for their class, and they warn.
    return sum(type(found) is Generation for found in gc.get_objects())


def start(fake, path="/v1/completions", **body):
    return asyncio.create_task(fake.post(path, **{"prompt": "hello", **body}))


def series(text):
    """Metric samples by name with labels other than the model's."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name.replace('model_name="fake"', "").replace("{}", "").replace(",}", "}").replace("{,", "{")] = value
    return {name: float(value) for name, value in found.items()}


async def metrics(fake):
    return series((await fake.http.get("/metrics")).text)


@in_virtual_time
async def test_defaults_are_openais(make_fake):
    fake = await make_fake()
    call = start(fake)
    chat = asyncio.create_task(fake.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}]))
    await until(lambda: len(fake.engine.requests) == 2)
    by_prompt = {bytes(r.prompt_token_ids[::4]).decode(): r.sampling for r in fake.engine.requests.values()}
    completion, conversation = by_prompt["hello"], by_prompt["user:hi\n"]
    assert (completion.max_tokens, completion.temperature, completion.top_p, completion.top_k) == (16, 1.0, 1.0, 0)
    assert completion.stop_token_ids == (EOS,)
    assert conversation.max_tokens == 100 - len("user:hi\n")
    assert completion.seed != conversation.seed
    for request_id in (0, 1):
        fake.engine.answer(request_id, "ok", slot=request_id)
    assert (await call).json()["usage"] == usage(5, 2)
    assert (await chat).json()["choices"][0]["message"] == {"role": "assistant", "content": "ok", "refusal": None}


@in_virtual_time
async def test_sampling_parameters_reach_the_engine(make_fake):
    fake = await make_fake()
    call = start(fake, max_tokens=7, temperature=0.5, top_p=0.9, top_k=5, seed=-1, stop_token_ids=[9], ignore_eos=True)
    await until(lambda: fake.engine.requests)
    sampling = fake.engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.9, 5)
    assert (sampling.seed, sampling.stop_token_ids) == (2**63 - 1, (9,))
    fake.engine.answer(0, "x")
    await call


@pytest.mark.parametrize("top_k", [256, 2**63, 2**70])
@in_virtual_time
async def test_top_k_of_the_vocabulary_or_more_keeps_all_whatever_its_size(make_fake, top_k):
    fake = await make_fake()
    call = start(fake, top_k=top_k)
    await until(lambda: fake.engine.requests)
    assert fake.engine.requests[0].sampling.top_k == 256
    fake.engine.answer(0, "x")
    assert (await call).status_code == 200


@in_virtual_time
async def test_request_that_cannot_be_sent_to_the_engine_keeps_no_place(make_fake, monkeypatch):
    fake = await make_fake(max_queued_requests=1)
    send = fake.service.session.link.send
    monkeypatch.setattr(fake.service.session.link, "send", lambda message: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await start(fake)
    assert not len(fake.service.registry)
    monkeypatch.setattr(fake.service.session.link, "send", send)
    call = start(fake)
    await until(lambda: fake.engine.requests)
    fake.engine.answer(*fake.engine.requests, "x")
    assert (await call).status_code == 200


@in_virtual_time
async def test_developer_role_and_text_parts_become_plain_messages(make_fake):
    fake = await make_fake()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
    call = asyncio.create_task(fake.post("/v1/chat/completions", messages=messages))
    await until(lambda: fake.engine.requests)
    assert bytes(fake.engine.requests[0].prompt_token_ids[::4]) == b"system:x\nuser:a\nb\n"
    fake.engine.answer(0, "ok")
    await call


@in_virtual_time
async def test_stop_string_over_token_boundaries_ends_the_request_in_the_engine(make_fake):
    fake = await make_fake()
    call = start(fake, stop=["END"])
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)])
    for token in b"so ENEND more":
        fake.engine.report(tokens={0: token})
    answer = (await call).json()["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == ("so EN", "stop")
    await until(lambda: fake.engine.cancels)
    assert [(c.request_id, c.reason) for c in fake.engine.cancels] == [(0, FinishReason.STOP)]


@in_virtual_time
async def test_tokens_behind_a_stop_string_in_the_same_step_are_dropped(make_fake):
    fake = await make_fake()
    call = start(fake, stop=["END"])
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)], tokens=[(0, token) for token in b"so END more"])
    answer = (await call).json()
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("so ", "stop")
    assert answer["usage"]["completion_tokens"] == len("so END")
    await until(lambda: fake.engine.cancels)
    assert [(c.request_id, c.reason) for c in fake.engine.cancels] == [(0, FinishReason.STOP)]


LONG_TEXT = b"so END, the END of it"
BEFORE_COMMA = LONG_TEXT.index(b",") + 1
ENDINGS = {
    "stop string": ({"stop": ["END"]}, "so ", 6),
    "two stop strings": ({"stop": ["D, the", "o EN"]}, "s", 5),
    "stop string that stays": ({"stop": ["END"], "include_stop_str_in_output": True}, "so END", 6),
    "stop string after a minimum": ({"stop": ["END"], "min_tokens": 8}, "so END, the ", 15),
    "stop string without an end token": ({"stop": ["END"], "ignore_eos": True}, "so ", 6),
    "stop string at the length": ({"stop": ["END"], "max_tokens": 6}, "so ", 6),
    "length": ({"stop": ["END"], "max_tokens": 5}, "so EN", 5),
    "stop token": ({"stop": ["EMD"], "stop_token_ids": [ord(",")]}, "so END", BEFORE_COMMA),
    "stop token that stays": (
        {"stop_token_ids": [ord(",")], "include_stop_str_in_output": True},
        "so END,",
        BEFORE_COMMA,
    ),
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("ending", ENDINGS)
@in_virtual_time
async def test_an_answer_ends_at_the_same_token_however_many_come_with_a_step(make_fake, ending, streamed):
    fields, text, num_tokens = ENDINGS[ending]
    by_the_engine = {"length": FinishReason.LENGTH, "stop string at the length": FinishReason.LENGTH}
    of_engine = LONG_TEXT[:num_tokens] if "token" in ending or "length" in ending else LONG_TEXT
    for most in (1, 4, len(LONG_TEXT)):
        fake = await make_fake()
        more = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        call = start(fake, **{"max_tokens": 64} | fields | more)
        await until(lambda fake=fake: fake.engine.requests)
        fake.engine.report(admitted=[(0, 0)])
        for first in range(0, len(of_engine), most):
            tokens = of_engine[first : first + most]
            ended = first + most >= len(of_engine) and [(0, by_the_engine.get(ending, FinishReason.STOP))]
            fake.engine.report(tokens=[(0, token) for token in tokens], finished=ended or ())
        answer = await call
        parts = [json.loads(each) for each in events(answer.text)[:-1]] if streamed else [answer.json()]
        choices = [choice for part in parts for choice in part["choices"]]
        reason = "length" if ending == "length" else "stop"
        assert ("".join(each["text"] for each in choices), choices[-1]["finish_reason"]) == (text, reason)
        assert parts[-1]["usage"] == usage(5, num_tokens)


@in_virtual_time
async def test_stop_token_is_no_part_of_the_text_but_counts(make_fake):
    fake = await make_fake()
    call = start(fake, "/v1/generate")
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 2)])
    fake.engine.report(tokens={2: ord("a")})
    fake.engine.report(tokens={2: EOS}, finished=[(0, FinishReason.STOP)])
    answer = (await call).json()
    assert (answer["text"], answer["tokens"], answer["finish_reason"]) == ("a", [97, EOS], "stop")
    timings = answer["timings"]
    assert 0 <= timings["queue_seconds"] <= timings["ttft_seconds"] <= timings["total_seconds"]


@in_virtual_time
async def test_stream_holds_back_what_may_be_a_stop_string_and_ends_with_usage(make_fake):
    fake = await make_fake()
    call = start(fake, stop="END", stream=True, stream_options={"include_usage": True})
    await until(lambda: fake.engine.requests)
    fake.engine.answer(0, "so EN", reason=FinishReason.LENGTH)
    answer = await call
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    chunks = [json.loads(chunk) for chunk in chunks]
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == "so EN"
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == usage(5, 5)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


@in_virtual_time
async def test_queue_bound_is_exact_and_says_when_to_try_again(make_fake):
    fake = await make_fake(max_queued_requests=3)
    calls = [start(fake) for _ in range(10)]
    refused = [call for call in calls if (await asyncio.wait([call], timeout=0.2))[0]]
    assert len(refused) == 7
    for call in refused:
        answer = await call
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
    assert len(fake.engine.requests) == 3
    # An admission makes room for exactly one more.
    first = next(iter(fake.engine.requests))
    fake.engine.report(admitted=[(first, 0)], num_running=1)
    await until(lambda: fake.service.session.stats.num_running == 1)
    more = [start(fake), start(fake)]
    done, _ = await asyncio.wait(more, timeout=0.2)
    assert [task.result().status_code for task in done] == [503]
    seen = await metrics(fake)
    assert seen["vllm:num_requests_waiting"] == 3
    assert seen["vllm:num_requests_running"] == 1
    assert seen['inflight_admission_rejections_total{reason="queue_full"}'] == 8
    for request_id in fake.engine.requests:
        fake.engine.answer(request_id, "x")
    for call in [*calls, *more]:
        assert (await call).status_code in (200, 503)


@in_virtual_time
async def test_token_bound_counts_prompt_tokens(make_fake):
    fake = await make_fake(max_queued_requests=8, max_queued_tokens=12)
    first = start(fake)
    await until(lambda: fake.engine.requests)
    second = start(fake)
    await until(lambda: len(fake.engine.requests) == 2)
    third = await start(fake)
    assert (third.status_code, third.json()["error"]["code"]) == (503, "queue_full")
    never = await start(fake, prompt="x" * 13)
    assert (never.status_code, never.json()["error"]["param"]) == (400, "prompt")
    assert (await metrics(fake))["inflight_waiting_prompt_tokens"] == 10
    for request_id in (0, 1):
        fake.engine.answer(request_id, "x")
    await asyncio.gather(first, second)


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_queue_timeout_is_504_and_frees_the_place(make_fake, stream):
    fake = await make_fake(queue_timeout=0.05, max_queued_requests=1)
    answer = await start(fake, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "queue_timeout")
    await until(lambda: fake.engine.cancels)
    assert fake.engine.cancels[0].reason is FinishReason.TIMEOUT
    await until(lambda: not len(fake.service.registry))
    again = await start(fake)
    assert again.status_code == 504


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_an_answer_may_take_any_time_while_tokens_come(make_fake, stream):
    fake = await make_fake(request_timeout=0.3)
    call = start(fake, stream=stream, max_tokens=8)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)])
    for _ in range(8):
        await asyncio.sleep(0.1)
        fake.engine.report(tokens={0: ord("a")})
    fake.engine.report(finished=[(0, FinishReason.LENGTH)])
    answer = await call
    assert answer.status_code == 200
    assert "request_timeout" not in answer.text


@in_virtual_time
async def test_the_request_timeout_of_a_class_stands_for_its_requests(make_fake):
    classes = (ServiceClass("quick", request_timeout=0.1), ServiceClass("patient"))
    fake = await make_fake(engine=EngineConfig("fake", classes=classes))
    quick, patient = start(fake), start(fake, **{"class": "patient"})
    answer = await quick
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
    assert "0.1 s" in answer.json()["error"]["message"]
    fake.engine.answer(1, "x")
    assert (await patient).status_code == 200


@pytest.mark.parametrize("admitted", [False, True])
@in_virtual_time
async def test_request_timeout_counts_from_arrival_whether_it_waits_or_runs(make_fake, admitted):
    fake = await make_fake(queue_timeout=30.0, request_timeout=1.0)
    began, call = time.monotonic(), start(fake)
    await until(lambda: fake.engine.requests)
    await asyncio.sleep(0.7)
    if admitted:
        fake.engine.report(admitted=[(0, 0)])
    answer = await call
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
    assert time.monotonic() - began == pytest.approx(1.0, abs=0.01)


@in_virtual_time
async def test_request_timeout_in_a_stream_is_an_error_event(make_fake):
    fake = await make_fake(request_timeout=0.1)
    call = start(fake, stream=True)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 0)], tokens={0: ord("a")})
    answer = await call
    first, last = events(answer.text)
    assert answer.status_code == 200
    assert json.loads(first)["choices"][0]["text"] == "a"
    assert json.loads(last)["error"]["code"] == "request_timeout"


@in_virtual_time
async def test_preempted_request_goes_on_in_another_slot(make_fake):
    fake = await make_fake()
    first, second = start(fake), start(fake)
    await until(lambda: len(fake.engine.requests) == 2)
    engine = fake.engine
    engine.report(admitted=[(0, 0)], tokens={0: ord("a")})
    # Request 0 loses slot 0 to request 1 and resumes in slot 1.
    engine.report(admitted=[(1, 0)], tokens={0: ord("x")})
    engine.report(admitted=[(0, 1)], tokens={0: ord("y"), 1: ord("b")})
    engine.report(finished=[(0, FinishReason.LENGTH), (1, FinishReason.LENGTH)])
    assert (await first).json()["choices"][0]["text"] == "ab"
    assert (await second).json()["choices"][0]["text"] == "xy"
    assert (await metrics(fake))["vllm:request_queue_time_seconds_count"] == 2


@in_virtual_time
async def test_engine_that_dies_before_the_tokenizer_is_loaded_leaves_a_failed_server(make_fake, monkeypatch):
    fake = await make_fake(load=False)

    async def slow(config):
        fake.engine.send(READY)
        await fake.service.session.first_ready
        fake.engine.die()
        await asyncio.wait_for(fake.service.session.failure, 60)
        return ByteTokenizer(), ""

    monkeypatch.setattr(lifecycle, "_in_daemon_thread", slow)
    await lifecycle.Lifecycle(fake.service, None, OpenResponses())._load()
    assert (await fake.http.get("/ready")).status_code == 503
    assert (await fake.http.get("/health")).status_code == 503


@in_virtual_time
async def test_an_answer_of_ready_waits_for_the_model_but_shorter_than_a_probe_does(make_fake):
    fake, now = await make_fake(load=False), asyncio.get_running_loop().time
    began = now()
    assert (await fake.http.get("/ready")).status_code == 503
    assert HELD_SECONDS <= now() - began < engine_probes(600)["startupProbe"]["timeoutSeconds"]
    began, asked = now(), asyncio.create_task(fake.http.get("/ready"))
    await asyncio.sleep(0.5)
    assert not asked.done()
    fake.engine.send(READY)
    await fake.service.session.first_ready
    await fake.service.open(ByteTokenizer(), LimitsInForce(CAPACITY))
    assert (await asked).status_code == 200
    assert now() - began < 0.6


@in_virtual_time
async def test_a_server_that_ends_while_it_loads_answers_ready_at_once_also_where_an_answer_waits(make_fake):
    fake, now = await make_fake(load=False), asyncio.get_running_loop().time
    began, waiting = now(), asyncio.create_task(fake.http.get("/ready"))
    await asyncio.sleep(0.5)
    lifecycle.Lifecycle(fake.service, None, OpenResponses()).drain()
    for answer in (await waiting, await fake.http.get("/ready")):
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")
    assert now() - began < 0.6


@in_virtual_time
async def test_while_loading_health_is_fine_and_requests_are_told_to_come_back(make_fake):
    fake = await make_fake(load=False)
    health, ready, answer = await fake.http.get("/health"), await fake.http.get("/ready"), await start(fake)
    assert (health.status_code, health.json()["status"]) == (200, "loading")
    assert "inflight_loading" not in (await fake.http.get("/metrics")).text
    fake.engine.send(Loading(3_200_000_000, 16_000_000_000, 20.0))
    await until(lambda: fake.service.session.loading is not None)
    assert "3.20 of 16.00 GB read" in (await fake.http.get("/ready")).json()["reason"]
    page = (await fake.http.get("/metrics")).text
    assert 'inflight_loading_read_bytes{model_name="fake"} 3.2e+09' in page
    assert 'inflight_loading_total_bytes{model_name="fake"} 1.6e+10' in page
    assert 'inflight_loading_seconds{model_name="fake"} 20.0' in page
    fake.engine.send(READY)
    await fake.service.session.first_ready
    assert 'inflight_loading_read_bytes{model_name="fake"} 1.6e+10' in (await fake.http.get("/metrics")).text
    assert ready.status_code == 503
    assert "to load" in ready.json()["reason"]
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "loading")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await fake.http.get("/v1/runtime_config")).status_code == 503
    assert (await fake.http.get("/metrics")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_answer_that_was_sent_leaves_nothing_in_memory(make_fake, stream):
    fake, before = await make_fake(), num_generations()
    calls = [start(fake, stream=stream) for _ in range(3)]
    await until(lambda: len(fake.engine.requests) == 3)
    assert num_generations() == before + 3
    for request_id in range(3):
        fake.engine.answer(request_id, "text", slot=request_id)
    assert [(await call).status_code for call in calls] == [200] * 3
    await until(lambda: num_generations() == before)

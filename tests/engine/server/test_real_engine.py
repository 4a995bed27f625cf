"""The whole engine with its real model, through real HTTP: OpenAI's SDK, many clients, clients that leave."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.server.real_server import TOKEN
from tests.engine.server.test_measurements import MEASURED, OWN, VLLM

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def sdk(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120)


def test_sdk_chat(sdk):
    answer = sdk.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=8, temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert "Paris" in choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_sdk_stream_says_the_same_as_the_whole_answer(sdk):
    same = {"model": "smollm2", "messages": QUESTION, "max_completion_tokens": 8, "temperature": 0}
    whole = sdk.chat.completions.create(**same)
    chunks = list(sdk.chat.completions.create(**same, stream=True, stream_options={"include_usage": True}))
    *texts, end, usage = chunks
    assert texts[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in texts) == whole.choices[0].message.content
    assert end.choices[0].finish_reason == whole.choices[0].finish_reason
    assert usage.usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_sdk_completions_with_text_and_with_token_ids(sdk):
    same = {"model": "smollm2", "max_tokens": 4, "temperature": 0}
    text = sdk.completions.create(prompt="Once upon a time", **same)
    stream = sdk.completions.create(prompt="Once upon a time", stream=True, **same)
    assert "".join(chunk.choices[0].text for chunk in stream) == text.choices[0].text
    by_ids = sdk.completions.create(prompt=[6403, 1980, 253, 655], **same)
    assert by_ids.usage.prompt_tokens == 4


def test_same_seed_same_tokens_whatever_else_runs(server):
    def ask(seed):
        body = {"prompt": "The weather", "max_tokens": 6, "seed": seed, "temperature": 1.0}
        return httpx.post(f"{server.url}/v1/generate", json=body, timeout=120).json()

    first = ask(5)
    with ThreadPoolExecutor() as others:
        crowd = [others.submit(ask, seed) for seed in range(6, 14)]
        again, other = ask(5), crowd[0].result()
    assert first["tokens"] == again["tokens"] != other["tokens"]
    assert first["finish_reason"] == "length"
    assert (
        0 <= first["timings"]["queue_seconds"] <= first["timings"]["ttft_seconds"] < first["timings"]["total_seconds"]
    )


def test_min_tokens_keeps_an_answer_from_stopping_and_a_repeated_prompt_is_cached(server):
    stops_at_once = {"prompt": "Once upon a time " * 10, "max_tokens": 4, "temperature": 0, "logit_bias": {"2": 100}}

    def ask(**more):
        answer = httpx.post(f"{server.url}/v1/completions", json=stops_at_once | more, timeout=120).json()
        return answer["usage"], answer["choices"][0]["finish_reason"]

    usage, reason = ask()
    assert (usage["completion_tokens"], reason) == (1, "stop")
    usage, reason = ask(min_tokens=3)
    assert (usage["completion_tokens"], reason) == (4, "stop")
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 16


def test_tokens_of_a_conversation_are_those_that_are_counted(server):
    tokens = httpx.post(f"{server.url}/tokenize", json={"messages": QUESTION}).json()
    body = {"messages": QUESTION, "max_tokens": 1, "return_token_ids": True}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json()
    assert answer["prompt_token_ids"] == tokens["tokens"]
    assert answer["usage"]["prompt_tokens"] == tokens["count"]
    text = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"]
    assert text.startswith("<|im_start|>")
    assert "capital of France" in text


def test_sdk_stop_string_ends_the_answer_before_it(sdk):
    same = {"model": "smollm2", "prompt": "1, 2, 3, 4, 5,", "temperature": 0, "max_tokens": 12}
    full = sdk.completions.create(**same).choices[0].text
    stop = full[3:5]
    cut = sdk.completions.create(**same, stop=stop).choices[0]
    assert (cut.text, cut.finish_reason) == (full[: full.index(stop)], "stop")


def test_sdk_models(sdk):
    assert [model.id for model in sdk.models.list()] == ["smollm2"]
    assert sdk.models.retrieve("smollm2").id == "smollm2"


def test_sdk_errors(sdk):
    with pytest.raises(openai.NotFoundError, match="'smollm2'"):
        sdk.chat.completions.create(model="gpt-4", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.completions.create(model="smollm2", prompt="a", suffix="b")
    assert (refused.value.param, refused.value.code) == ("suffix", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.completions.create(model="smollm2", prompt="word " * 2000)
    assert refused.value.code == "context_length_exceeded"


async def test_200_clients_at_once_get_answers_or_503_and_nothing_else(server):
    async with httpx.AsyncClient(timeout=240, limits=httpx.Limits(max_connections=None)) as http:

        async def ask(number):
            body = {"prompt": f"Number {number}", "max_tokens": 2, "stream": number % 2 == 0}
            answer = await http.post(f"{server.url}/v1/completions", json=body)
            if answer.status_code == 200:
                assert "error" not in answer.text
                assert not body["stream"] or answer.text.endswith("data: [DONE]\n\n")
            else:
                assert answer.json()["error"]["code"] == "queue_full"
                assert int(answer.headers["retry-after"]) >= 1
            return answer.status_code

        statuses = await asyncio.gather(*(ask(number) for number in range(200)))
    answers, refusals = statuses.count(200), statuses.count(503)
    assert answers + refusals == 200
    # Those that wait, and at most the 16 slots beyond what was admitted meanwhile.
    assert answers >= 64
    assert refusals > 0
    idle(server)


def idle(server, seconds=60):
    """Wait until nothing runs or waits; the metrics then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seen = server.metrics()
        if (
            seen["vllm:num_requests_running"]
            == seen["vllm:num_requests_waiting"]
            == seen["vllm:kv_cache_usage_perc"]
            == 0
        ):
            return seen
        time.sleep(0.02)
    raise AssertionError(f"still busy: {seen}")


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_frees_its_blocks_within_one_step(server, stream):
    idle(server)
    body = {"prompt": "word " * 300, "max_tokens": 600, "ignore_eos": True, "stream": stream}
    with httpx.Client(timeout=120) as http:
        request = http.build_request("POST", f"{server.url}/v1/completions", json=body)
        if stream:
            answer = http.send(request, stream=True)
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            with stopped_engine(server):
                busy = server.metrics()
                answer.close()
                let_it_notice(server)
        else:
            busy = leave_in_the_middle(server, request)
    assert busy["vllm:num_requests_running"] == 1
    assert busy["vllm:kv_cache_usage_perc"] >= 300 / (512 * 16)
    after = idle(server)
    # Of one step the end may not have been counted yet, one runs, and one is always on its way.
    assert after["vllm:iteration_tokens_total_count"] - busy["vllm:iteration_tokens_total_count"] <= 3
    assert after["inflight_requests_cancelled_total"] == busy["inflight_requests_cancelled_total"] + 1


def leave_in_the_middle(server, request):
    """Send a request, and close the connection once it has generated; the metrics before."""
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as connection:
        lines = [f"{request.method} {request.url.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + request.content)
        before = server.metrics()["vllm:generation_tokens_total"]
        while (seen := server.metrics())["vllm:generation_tokens_total"] < before + 2:
            time.sleep(0.01)
        with stopped_engine(server):
            seen = server.metrics()
            connection.close()
            let_it_notice(server)
        return seen


@contextlib.contextmanager
def stopped_engine(server):
    """The engine process stands still, so that no step depends on how late other processes run."""
    os.kill(server.engine_pid(), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.engine_pid(), signal.SIGCONT)


def let_it_notice(server):
    """Requests that came after a connection was closed are answered after its end is."""
    for _ in range(5):
        server.metrics()


def test_metrics_have_every_name_with_the_served_model(server):
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    names = set()
    for family in text_string_to_metric_families(text):
        names.add(family.name + "_total" if family.type == "counter" else family.name)
        assert all(sample.labels["model_name"] == "smollm2" for sample in family.samples)
    without_tiers = {
        name for name in OWN if not name.startswith(("inflight_tier_", "inflight_disk_", "inflight_peer_"))
    }
    of_a_model = {"inflight_model_info"}  # a stand-in has no files
    assert names - MEASURED - {"inflight_step_cost_curve_seconds"} == set(VLLM) | without_tiers | of_a_model


def test_after_some_traffic_the_cost_of_steps_and_the_length_of_outputs_are_measured(server):
    before = server.metrics()

    def ask(number):
        time.sleep(0.1 * number)
        body = {"prompt": [1000 + number] * (1 + 9 * number), "max_tokens": 4 + 2 * (number % 7), "ignore_eos": True}
        return httpx.post(f"{server.url}/v1/completions", json=body, timeout=240).status_code

    with ThreadPoolExecutor(24) as clients:
        assert set(clients.map(ask, range(24))) == {200}
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families.keys() >= MEASURED
    after = server.metrics()
    assert after["inflight_arrived_requests_total"] == before["inflight_arrived_requests_total"] + 24
    assert after["inflight_step_cost_steps"] >= 16
    assert 0 < after["inflight_step_cost_error_ratio"] < 1
    terms = {sample.labels["term"]: sample.value for sample in families["inflight_step_cost_seconds"].samples}
    curve = families.get("inflight_step_cost_curve_seconds")
    assert terms["prefill_token"] > 0 or curve is not None
    assert 1 <= after["inflight_output_tokens_mean"] <= 600
    assert after["inflight_output_tokens_second_moment"] >= after["inflight_output_tokens_mean"] ** 2


def test_limits_change_while_running_and_answers_stay_the_same(server):
    body = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}

    def ask():
        return httpx.post(f"{server.url}/v1/generate", json=body, timeout=120).json()["tokens"]

    def change(**limits):
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.patch(f"{server.url}/v1/runtime_config", json=limits, headers=headers, timeout=60)

    before = ask()
    assert change(max_num_seqs=1, max_num_batched_tokens=3, revision=1).json()["max_num_batched_tokens"] == 3
    assert ask() == before
    assert change(max_num_seqs=17).status_code == 400
    assert change(max_num_seqs=16, max_num_batched_tokens=256, revision=2).json()["revision"] == 2
    assert server.metrics()["inflight_max_num_seqs"] == 16


def test_api_process_never_loads_torch(server):
    api = Path(f"/proc/{server.process.pid}/maps").read_text()
    engine = Path(f"/proc/{server.engine_pid()}/maps").read_text()
    assert "libtorch" in engine
    assert "libtorch" not in api

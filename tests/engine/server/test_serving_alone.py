"""Parts that a server without a gateway needs: several names, API keys, CORS, load, heartbeats of streams."""

import asyncio
import json

import pytest

from inflight_engine.request import FinishReason
from inflight_engine.server.answers import respond
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import until
from tests.engine.server.test_cli import parse
from tests.engine.server.test_requests import events, metrics

pytestmark = pytest.mark.usefixtures("virtual_clock")

NAMES = {"served_model_names": ("one", "two/b")}
KEYS = {"api_key": ("k1", "k2")}


def start(fake, path="/v1/completions", **body):
    return asyncio.create_task(fake.post(path, **{"prompt": "hello", **body}))


async def answered(fake, call):
    await until(lambda: fake.engine.requests)
    fake.engine.answer(0, "x")
    return await call


@pytest.mark.parametrize("asked", [None, "one", "two/b"])
@in_virtual_time
async def test_each_name_serves_and_answers_have_the_first(make_fake, asked):
    fake = await make_fake(**NAMES)
    answer = await answered(fake, start(fake, model=asked))
    assert answer.json()["model"] == "one"


@in_virtual_time
async def test_the_list_of_models_has_all_names(make_fake):
    fake = await make_fake(**NAMES)
    listed = (await fake.http.get("/v1/models")).json()["data"]
    assert [each["id"] for each in listed] == ["one", "two/b"]
    assert (await fake.http.get("/v1/models/two/b")).json()["id"] == "two/b"
    refused = await fake.post("/v1/completions", prompt="a", model="three")
    assert (refused.status_code, "'one', 'two/b'" in refused.text) == (404, True)
    assert 'model_name="one"' in (await fake.http.get("/metrics")).text


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("m --served-model-name a b", ("a", "b")),
        ("--served-model-name=a m", ("a",)),
        ('m --served-model-name ["a","b"]', ("a", "b")),
        ("some/m", ("m",)),
    ],
)
def test_names_are_given_as_in_vllm(flags, names):
    assert parse(*flags.split()).served_model_names == names


@pytest.mark.parametrize("given", ["[1]", "[", '["a", 2]'])
def test_a_list_of_anything_but_texts_is_wrong_usage(given):
    with pytest.raises(SystemExit):
        parse("m", "--allowed-origins", given)


def test_lists_may_stand_in_the_file(tmp_path):
    (tmp_path / "c.yaml").write_text("model: m\nserved-model-name: [-a, b]\nallowed-origins: ['*']\napi-key: k\n")
    config = parse("--config", str(tmp_path / "c.yaml"))
    assert (config.served_model_names, config.allowed_origins, config.api_key) == (("-a", "b"), ("*",), ("k",))


@pytest.mark.parametrize(("given", "keys"), [([], ("from env",)), (["--api-key", "a", "b"], ("a", "b"))])
def test_keys_come_from_the_flag_else_the_environment(monkeypatch, given, keys):
    monkeypatch.setenv("INFLIGHT_API_KEY", "from env")
    assert parse("m", *given).api_key == keys


@pytest.mark.parametrize("key", ["", " ", "\t", "a ", "schlüssel", "a\n"])
@pytest.mark.parametrize("place", ["flag", "second", "file", "environment"])
def test_a_key_that_is_empty_or_that_no_header_can_carry_is_wrong_usage(monkeypatch, tmp_path, capsys, place, key):
    given = {"flag": ["--api-key", key], "second": ["--api-key", "a", key]}.get(place, [])
    if place == "environment":
        monkeypatch.setenv("INFLIGHT_API_KEY", key)
    if place == "file":
        (tmp_path / "c.yaml").write_text(f"api-key: {json.dumps(key)}\n")
        given = ["--config", str(tmp_path / "c.yaml")]
    with pytest.raises(SystemExit):
        parse("m", *given)
    assert "INFLIGHT_API_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"x-api-key": ""}, 401),
        ({"Authorization": "Bearer wrong", "x-api-key": "k1"}, 404),
        ({"Authorization": "Bearer k3"}, 401),
        ({"Authorization": "Basic k1"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer k1"}, 404),
        ({"authorization": "bearer k2"}, 404),
        ({"x-api-key": "k1"}, 404),
    ],
)
@in_virtual_time
async def test_requests_need_a_key(make_fake, headers, status):
    fake = await make_fake(**KEYS)
    for path in ("/v1/completions", "/v1/embeddings", "/rerank", "/tokenize"):
        body = {"model": "other", "prompt": "a"} if "em" not in path and "rank" not in path else None
        answer = await fake.http.post(
            path, json=body or {"model": "other", "input": "a", "query": "a"}, headers=headers
        )
        assert (answer.status_code == 401) == (status == 401)
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert (await fake.http.get("/v1/models", headers=headers)).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/ping", "/load", "/version", "/v1/runtime_config"])
@in_virtual_time
async def test_probes_and_metrics_need_none(make_fake, path):
    fake = await make_fake(**KEYS)
    assert (await fake.http.get(path)).status_code == 200
    assert (await fake.http.post("/admin/drain")).json()["error"]["code"] != "invalid_api_key"


@in_virtual_time
async def test_browsers_of_allowed_origins_may_ask(make_fake):
    fake = await make_fake(allowed_origins=("https://a",), **KEYS)
    asks = {"Origin": "https://a", "Access-Control-Request-Method": "POST"}
    preflight = await fake.http.options("/v1/completions", headers=asks)
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, "https://a")
    refused = await fake.http.options("/v1/completions", headers=asks | {"Origin": "https://b"})
    assert "access-control-allow-origin" not in refused.headers
    call = asyncio.create_task(
        fake.http.post(
            "/v1/completions",
            json={"prompt": "a", "stream": True},
            headers={"Origin": "https://a", "Authorization": "Bearer k1"},
        )
    )
    answer = await answered(fake, call)
    assert answer.headers["access-control-allow-origin"] == "https://a"
    assert events(answer.text)[-1] == "[DONE]"
    without = await make_fake()
    assert "access-control-allow-origin" not in (await without.http.get("/health", headers=asks)).headers


@in_virtual_time
async def test_load_counts_requests_and_ping_is_health(make_fake):
    fake = await make_fake()
    assert (await fake.http.get("/load")).json() == {"server_load": 0}
    call = start(fake, n=2)
    await until(lambda: len(fake.engine.requests) == 2)
    assert (await fake.http.get("/load")).json() == {"server_load": 2}
    for number in (0, 1):
        fake.engine.answer(number, "x", slot=number)
    await call
    for answer in (await fake.http.get("/ping"), await fake.http.post("/ping")):
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")


@in_virtual_time
async def test_lengths_and_times_of_requests_are_histograms(make_fake):
    fake = await make_fake()
    call = start(fake, max_tokens=7, n=2)
    await until(lambda: len(fake.engine.requests) == 2)
    for number in (0, 1):
        fake.engine.report(admitted=[(number, number)], num_running=1)
        for token in b"abc":
            await asyncio.sleep(0.01)
            fake.engine.report(tokens={number: token}, num_running=1)
        fake.engine.report(finished=[(number, FinishReason.LENGTH)])
    await call
    found = await metrics(fake)
    sums = {"prompt_tokens": 10, "generation_tokens": 6, "params_max_tokens": 14, "params_n": 2}
    assert {name: found[f"vllm:request_{name}_sum"] for name in sums} == sums
    counts = {"params_n": 1, "prompt_tokens": 2, "prefill_time_seconds": 2, "decode_time_seconds": 2}
    assert {name: found[f"vllm:request_{name}_count"] for name in counts} == counts
    parts = [found[f"vllm:request_{name}_time_seconds_sum"] for name in ("prefill", "decode", "inference")]
    assert parts[0] + parts[1] == pytest.approx(parts[2])
    assert parts[1] == pytest.approx(0.04)


@pytest.fixture
def short_period(monkeypatch):
    monkeypatch.setattr(respond, "CLIENT_PERIOD", 0.2)


@in_virtual_time
async def test_a_stream_that_waits_gets_its_head_and_comments_and_then_its_answer(make_fake, short_period):
    fake = await make_fake()
    call = start(fake, stream=True)
    await until(lambda: fake.engine.requests)
    await asyncio.sleep(0.7)
    fake.engine.answer(0, "xy")
    answer = await call
    comments = [event for event in answer.text.split("\n\n") if event.startswith(":")]
    assert 2 <= len(comments) <= 5
    assert [event for event in events(answer.text) if event.startswith(":")] == comments
    assert events(answer.text)[-1] == "[DONE]"


@in_virtual_time
async def test_before_the_first_comment_a_failure_has_its_status_and_after_it_an_event(make_fake, short_period):
    for wait, status in ((0.0, 500), (0.5, 200)):
        fake = await make_fake()
        call = start(fake, stream=True)
        await until(lambda fake=fake: fake.engine.requests)
        await asyncio.sleep(wait)
        fake.engine.report(finished=[(0, FinishReason.ERROR)])
        answer = await call
        assert (answer.status_code, "engine_error" in answer.text) == (status, True)


@in_virtual_time
async def test_an_answer_that_is_not_streamed_gets_no_comments(make_fake, short_period):
    fake = await make_fake()
    call = start(fake)
    await until(lambda: fake.engine.requests)
    await asyncio.sleep(0.5)
    fake.engine.answer(0, "x")
    assert isinstance((await call).json(), dict)

"""Several answers, log-probabilities and the recording, with the real model and through the SDK and commands."""

import subprocess
import sys

import httpx
import openai
import pytest

from tests.engine.server.real_server import TOKEN

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SAME = {"model": "smollm2", "messages": QUESTION, "max_completion_tokens": 8}


@pytest.fixture
def sdk(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120)


def test_sample_i_is_what_seed_plus_i_gives_alone(sdk):
    together = sdk.chat.completions.create(**SAME, n=3, seed=11, temperature=1.0)
    alone = [sdk.chat.completions.create(**SAME, seed=11 + i, temperature=1.0).choices[0] for i in range(3)]
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [choice.message.content for choice in together.choices] == [choice.message.content for choice in alone]
    assert len({choice.message.content for choice in alone}) > 1


def test_greedy_samples_and_prompts_in_a_list_equal_single_calls(sdk):
    prompts = ["Once upon a time", "The weather today"]
    same = {"model": "smollm2", "max_tokens": 6, "temperature": 0}
    single = [sdk.completions.create(prompt=prompt, **same) for prompt in prompts]
    many = sdk.completions.create(prompt=prompts, n=2, **same)
    texts = [answer.choices[0].text for answer in single]
    assert [(c.index, c.text) for c in many.choices] == [(i, texts[i // 2]) for i in range(4)]
    assert many.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in single)
    assert many.usage.completion_tokens == 2 * sum(answer.usage.completion_tokens for answer in single)


def test_stream_of_n_says_the_same_as_the_whole_answer(sdk):
    whole = sdk.chat.completions.create(**SAME, n=2, seed=3, temperature=1.0)
    texts, reasons = ["", ""], [None, None]
    for chunk in sdk.chat.completions.create(**SAME, n=2, seed=3, temperature=1.0, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]


def test_greedy_token_is_the_likeliest_and_its_logprob_is_among_the_top(sdk):
    choice = sdk.chat.completions.create(**SAME, temperature=0, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert bytes(b for entry in entries for b in entry.bytes).decode() == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)
        assert 0 >= entry.logprob >= entry.top_logprobs[1].logprob >= entry.top_logprobs[2].logprob
    chunks = sdk.chat.completions.create(**SAME, temperature=0, logprobs=True, top_logprobs=3, stream=True)
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


def test_completion_logprobs_have_the_texts_offsets(sdk):
    answer = sdk.completions.create(
        model="smollm2", prompt="Once upon a time", max_tokens=6, temperature=0, logprobs=2
    ).choices[0]
    logprobs = answer.logprobs
    assert "".join(logprobs.tokens) == answer.text
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(len(logprobs.tokens))]
    assert all(
        top[token] == max(top.values()) for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True)
    )


def test_bias_forbids_a_token_and_forces_one(sdk):
    same = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 1, "temperature": 0}
    likeliest = httpx.post(
        f"{sdk.base_url}generate", json={"prompt": same["prompt"], "max_tokens": 1, "temperature": 0}
    )
    (token_id,) = likeliest.json()["tokens"]
    assert (
        sdk.completions.create(**same, logit_bias={str(token_id): -100}).choices[0].text
        != sdk.completions.create(**same).choices[0].text
    )
    forced = httpx.post(
        f"{sdk.base_url}generate", json={"prompt": "a", "max_tokens": 2, "temperature": 0, "logit_bias": {"198": 100}}
    )
    assert forced.json()["tokens"] == [198, 198]


def test_classes_weights_and_recording_of_a_real_engine(own_server, tmp_path):
    """Requests of two classes and tenants; weights change meanwhile; the recording replays without a difference."""
    server = own_server(
        *("--service-class", "chat:weight=4,ttft=100", "--service-class", "batch:max_queued=50"),
        *("--scheduling-policy", "fair", "--trust-tenant-header"),
        *("--swap-space", "64Mi", "--record", str(tmp_path / "run.jsonl.gz")),
    )
    admin = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=server.url, timeout=120) as http:
        for number in range(4):
            body = {
                "prompt": ["Once upon a time", "a"],
                "n": 2,
                "max_tokens": 5,
                "class": ("chat", "batch")[number % 2],
            }
            answer = http.post("/v1/completions", json=body, headers={"X-Inflight-Tenant": f"team-{number}"})
            assert len(answer.json()["choices"]) == 4, answer.text
            changed = http.patch(
                "/v1/runtime_config", json={"class_weights": {"batch": number + 2}}, headers=admin
            ).json()
            assert [c["weight"] for c in changed["scheduling"]["classes"]] == [4.0, number + 2.0]
        text = http.get("/metrics").text
        assert 'inflight_class_requests_finished_total{class="chat",model_name="smollm2"} 8.0' in text
        assert 'inflight_class_ttft_met_total{class="chat",model_name="smollm2"} 8.0' in text
        downloaded = http.get("/admin/record", headers=admin)
    assert downloaded.headers["content-type"] == "application/gzip"
    copy = tmp_path / "downloaded.jsonl.gz"
    copy.write_bytes(downloaded.content)
    replay = subprocess.run(
        [sys.executable, "-m", "inflight_engine.cli", "replay", str(copy)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (replay.returncode, "no difference" in replay.stdout) == (0, True), replay.stdout + replay.stderr

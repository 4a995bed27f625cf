"""Prompts that the real engine scores, asked for as evaluation harnesses do."""

import httpx
import openai
import pytest

PROMPT = "The capital of France is Paris. The capital of Germany is"


@pytest.fixture
def ask(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    return lambda **body: client.completions.create(model="smollm2", temperature=0, **body)


@pytest.fixture
def token_ids(server):
    return lambda text: httpx.post(f"{server.url}/tokenize", json={"prompt": text}).json()["tokens"]


def test_a_harness_finds_what_was_generated_greedy_and_as_likely_as_it_was(ask, token_ids):
    """Sends the requests of lm-evaluation-harness (local-completions), and reads the answers as it does."""
    generated = ask(prompt=PROMPT, max_tokens=6, logprobs=1).choices[0]
    context, whole = token_ids(PROMPT), token_ids(PROMPT + generated.text)
    wrong = [*context, *token_ids(" xylophone")]
    answer = ask(prompt=[whole, wrong], echo=True, logprobs=1, max_tokens=1, seed=1234)
    right, other = answer.choices
    assert right.text.startswith(PROMPT + generated.text)
    for choice, prompt in ((right, whole), (other, wrong)):
        scores = choice.logprobs
        assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == len(prompt) + 1
        assert (scores.token_logprobs[0], scores.top_logprobs[0]) == (None, None)
        assert [choice.text[at:].startswith(token) for at, token in zip(scores.text_offset, scores.tokens, strict=True)]
    found = right.logprobs.token_logprobs[len(context) : -1]
    assert found == pytest.approx(generated.logprobs.token_logprobs, abs=1e-3)
    greedy = [
        all(logprob == max(top.values()) for logprob, top in zip(*columns, strict=True))
        for columns in (
            (each.logprobs.token_logprobs[len(context) : -1], each.logprobs.top_logprobs[len(context) : -1])
            for each in (right, other)
        )
    ]
    assert greedy == [True, False]
    assert answer.usage.completion_tokens == 2


def test_a_prompt_alone_in_many_chunks_and_once_more_from_a_full_cache(ask, token_ids):
    """The server's steps have 256 tokens."""
    prompt = "".join(f"{number} times {number} is {number * number}.\n" for number in range(24))
    ask(prompt=prompt, max_tokens=1)  # in the prefix cache now
    first = ask(prompt=[prompt, PROMPT], n=2, echo=True, logprobs=0, max_tokens=0)
    again = ask(prompt=prompt, echo=True, logprobs=0, max_tokens=0)
    assert [choice.text for choice in first.choices] == [prompt] * 2 + [PROMPT] * 2
    assert {choice.finish_reason for choice in first.choices} == {"length"}
    count = len(token_ids(prompt))
    assert count > 256
    scores = [choice.logprobs for choice in (*first.choices[:2], *again.choices)]
    assert [len(each.tokens) for each in scores] == [count] * 3
    assert "".join(scores[0].tokens) == prompt
    assert all(each.token_logprobs == scores[0].token_logprobs for each in scores)
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    assert (again.usage.prompt_tokens, again.usage.completion_tokens) == (count, 0)


def test_a_stream_begins_with_the_prompt_and_prompt_logprobs_agree(ask, server):
    *parts, end = ask(prompt=PROMPT, echo=True, logprobs=2, max_tokens=3, stream=True)
    assert end.choices[0].finish_reason == "length"
    assert parts[0].choices[0].text.startswith(PROMPT)
    body = {"prompt": PROMPT, "prompt_logprobs": 2, "max_tokens": 1, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()["choices"][0]
    assert answer["logprobs"] is None
    _, *entries = answer["prompt_logprobs"]
    own = [next(iter(entry.values())) for entry in entries]
    scores = parts[0].choices[0].logprobs
    count = len(answer["prompt_logprobs"])
    assert [each["logprob"] for each in own] == scores.token_logprobs[1:count]
    assert [each["decoded_token"] for each in own] == scores.tokens[1:count]
    assert all(each["rank"] >= 1 for entry in entries for each in entry.values())
    assert all({1, 2} <= {each["rank"] for each in entry.values()} for entry in entries)

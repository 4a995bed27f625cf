"""The real model: words stay out of answers and vectors of texts are ranked, in whatever company, streamed or not."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytestmark = pytest.mark.slow

BODY = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0}


def ask(server, **more):
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY | more, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_bad_words_stay_out_alone_in_company_and_in_a_stream(server):
    free = ask(server)["text"]
    words = [word.strip(".,") for word in free.split()][:3]
    fields = {"bad_words": words}
    alone = ask(server, **fields)["text"]
    assert not any(f" {word}" in alone for word in words)
    with ThreadPoolExecutor(8) as pool:
        bodies = [fields if number % 2 else {} for number in range(8)]
        together = list(pool.map(lambda more: ask(server, **more)["text"], bodies))
    assert together == [alone if number % 2 else free for number in range(8)]
    with httpx.stream("POST", f"{server.url}/v1/completions", json=BODY | fields | {"stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == alone


def test_only_allowed_tokens_are_sampled(server):
    tokens = httpx.post(f"{server.url}/tokenize", json={"prompt": " yes no maybe"}).json()["tokens"]
    choice = ask(server, allowed_token_ids=tokens, return_token_ids=True, temperature=1, seed=3)
    assert set(choice["token_ids"]) <= set(tokens)
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (24, "length")


def test_a_special_token_shows_its_name_where_it_is_asked_for(server):
    (end,) = httpx.post(f"{server.url}/tokenize", json={"prompt": "<|im_end|>"}).json()["tokens"]
    only = {"allowed_token_ids": [end], "ignore_eos": True, "max_tokens": 2}
    assert ask(server, **only)["text"] == ""
    assert ask(server, **only, skip_special_tokens=False)["text"] == "<|im_end|>" * 2


def test_a_document_ranks_itself_first(server):
    documents = ["A train to Rome", "How to boil an egg", "Prime numbers"]
    body = {"query": documents[1], "documents": documents, "top_n": 2}
    results = httpx.post(f"{server.url}/rerank", json=body, timeout=60).json()["results"]
    assert (len(results), results[0]["index"]) == (2, 1)
    assert results[0]["relevance_score"] == pytest.approx(1, abs=1e-4)

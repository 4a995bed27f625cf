"""lm-eval: tasks of each kind that it asks of a server, with documents of this file."""

import json
import math
import os

import pytest
from lm_eval import simple_evaluate

DOCUMENTS = [
    {"question": "The capital of France is", "choices": ["Paris", "bananas", "seven"], "answer": 0},
    {"question": "Water is made of hydrogen and", "choices": ["music", "oxygen", "tables"], "answer": 1},
    {"question": "The opposite of hot is", "choices": ["paper", "green", "cold"], "answer": 2},
]
CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}],
}
GENERATION = {
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{choices[answer]}}",
    "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 12, "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}
PERPLEXITY = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{question}}",
    "metric_list": [{"metric": "word_perplexity"}],
}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    (folder / "documents.json").write_text("\n".join(map(json.dumps, DOCUMENTS)))

    def made(described):
        data = {"data_files": {"test": str(folder / "documents.json")}, "cache_dir": str(folder / "cache")}
        return {"task": "facts", "dataset_path": "json", "dataset_kwargs": data, "test_split": "test", **described}

    return made


@pytest.fixture
def evaluate(url, model, task):
    def run(path, described, **arguments):
        kind = "local-chat-completions" if path.startswith("chat/") else "local-completions"
        at = {"model": model, "base_url": f"{url}/v1/{path}", "max_length": 512, "max_retries": 1, **arguments}
        chat = kind == "local-chat-completions"
        found = simple_evaluate(kind, at, tasks=[task(described)], apply_chat_template=chat, bootstrap_iters=0)
        return found["samples"]["facts"], found["results"]["facts"]

    return run


@pytest.fixture
def tokenizer():
    return {"tokenizer_backend": "huggingface", "tokenizer": os.environ["INFLIGHT_TOKENIZER"]}


@pytest.mark.parametrize("arguments", [{}, {"batch_size": 4}, {"tokenized_requests": False}], ids=str)
def test_choices_are_scored_by_their_likelihood(evaluate, tokenizer, arguments):
    samples, results = evaluate("completions", CHOICE, **tokenizer, **arguments)
    assert len(samples) == len(DOCUMENTS)
    assert all(logprob < 0 for sample in samples for logprob, _ in sample["filtered_resps"])
    assert results["acc,none"] == 1


def test_texts_are_scored_by_their_perplexity(evaluate, tokenizer):
    _, results = evaluate("completions", PERPLEXITY, **tokenizer)
    assert 1 < results["word_perplexity,none"] < math.inf


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_answers_are_generated_until_their_end(evaluate, path):
    samples, results = evaluate(path, GENERATION, tokenizer_backend=None, eos_string="<|im_end|>")
    answers = [sample["filtered_resps"][0] for sample in samples]
    assert any(answers)
    assert not any("\n" in answer or "." in answer for answer in answers)
    assert 0 <= results["exact_match,none"] <= 1

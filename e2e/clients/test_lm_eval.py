"""lm-eval with tasks of this file: answers, and log-probabilities of given answers; nothing is downloaded."""

import json

import lm_eval
import pytest

QUESTIONS = [("The capital of France is", " Paris", " Rome"), ("Two plus two is", " four", " nine")]


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"q": q, "good": good, "bad": bad}) + "\n" for q, good, bad in QUESTIONS))
    return {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}}, "test_split": "test"}


def evaluate(model, task, **arguments):
    given = {"num_concurrent": 2, "max_retries": 1, **arguments}
    return lm_eval.simple_evaluate(model, model_args=given, tasks=[task], bootstrap_iters=0)["results"][task["task"]]


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_answers_are_generated_for_each_row(url, model, rows, chat):
    task = {
        **rows,
        "task": "answers",
        "output_type": "generate_until",
        "doc_to_text": "{{q}}",
        "doc_to_target": "{{good}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    }
    path = "chat/completions" if chat else "completions"
    given = {"model": model, "base_url": f"{url}/v1/{path}", "tokenizer_backend": None}
    kind = "local-chat-completions" if chat else "local-completions"
    found = lm_eval.simple_evaluate(
        kind, model_args=given, tasks=[task], apply_chat_template=chat, bootstrap_iters=0, log_samples=True
    )
    assert [bool(sample["resps"][0][0]) for sample in found["samples"]["answers"]] == [True, True]


def test_the_likelier_of_two_given_answers_is_the_right_one(url, model, rows):
    task = {
        **rows,
        "task": "choices",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{[good, bad]}}",
        "doc_to_target": 0,
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    given = {"model": model, "base_url": f"{url}/v1/completions", "tokenizer_backend": "remote"}
    assert evaluate("local-completions", task, **given)["acc,none"] == 1.0

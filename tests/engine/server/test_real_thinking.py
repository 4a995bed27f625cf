"""A served model whose tokenizer has tokens for the marks of reasoning."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.tokens.tokenizer import load_tokenizer
from tests.engine.execution.tiny_model import make_model
from tests.engine.server.real_server import RealServer

pytestmark = pytest.mark.slow

THINK, END, CALL = 5, 6, 7
"""Ids of special tokens of the built-in model's vocabulary, which get the names of marks."""
TEMPLATE = (
    "{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt and enable_thinking is defined and enable_thinking %}<think>{% endif %}"
    "{# </think> <tool_call> #}"
)
COLOR = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "blue"]}},
    "required": ["color"],
    "additionalProperties": False,
}
JSON = {"json": COLOR, "disable_any_whitespace": True}
PAINT = {"type": "function", "function": {"name": "paint", "parameters": COLOR, "strict": True}}
OPENS, DOES_NOT = {str(THINK): 100, str(END): -100}, {str(THINK): -100}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    built_in = load_tokenizer(resolve("builtin://smollm2"))
    built_in.save(folder / "tokenizer.json")
    described = json.loads((folder / "tokenizer.json").read_text())
    names = {built_in.names([THINK])[0]: "<think>", built_in.names([END])[0]: "</think>"}
    names[built_in.names([CALL])[0]] = "<tool_call>"
    for token in described["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = described["model"]["vocab"]
    described["model"]["vocab"] = {names.get(name, name): token_id for name, token_id in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    make_model(folder, "qwen3", {"vocab_size": built_in.vocab_size, "eos_token_id": 2})
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    flags = "--dtype float32 --max-num-seqs 8 --max-model-len 256 --num-kv-blocks 64 --device cpu".split()
    running = RealServer(tmp_path_factory.mktemp("server"), *flags, model=str(folder))
    yield running.wait_ready()
    running.close()


def ask(server, **body):
    messages = [{"role": "user", "content": "Paint it."}]
    body = {"messages": messages, "max_tokens": 100, "temperature": 1, "seed": 3, **body}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    usage, (choice,) = answer.json()["usage"], answer.json()["choices"]
    return choice["message"], choice["finish_reason"], usage["completion_tokens_details"]["reasoning_tokens"]


@pytest.mark.parametrize("budget", [0, 1, 7])
@pytest.mark.parametrize(
    "opened",
    [{"chat_template_kwargs": {"enable_thinking": True}, "logit_bias": {str(END): -100}}, {"logit_bias": OPENS}],
)
def test_json_follows_thinking_that_ends_with_its_budget(server, budget, opened):
    said, reason, count = ask(server, thinking_token_budget=budget, structured_outputs=JSON, **opened)
    assert (reason, count) == ("stop", budget)
    assert {*json.loads(said["content"])} == {"color"}
    assert ("reasoning" in said) == (budget == 7) or budget == 1  # the one token may be the mark again


def test_an_answer_without_thinking_is_json_too(server):
    said, reason, count = ask(server, structured_outputs=JSON, logit_bias=DOES_NOT)
    assert (reason, count, "reasoning" in said) == ("stop", 0, False)
    assert {*json.loads(said["content"])} == {"color"}


@pytest.mark.parametrize("bias", [OPENS, DOES_NOT])
def test_a_demanded_call_may_follow_thinking(server, bias):
    more = {"tools": [PAINT], "tool_choice": "required", "parallel_tool_calls": False}
    said, reason, count = ask(server, thinking_token_budget=4, logit_bias=bias, **more)
    assert (reason, count) == ("tool_calls", 4 if bias is OPENS else 0)
    (call,) = said["tool_calls"]
    assert {*json.loads(call["function"]["arguments"])} == {"color"}


def test_a_call_that_the_model_begins_follows_the_schema_of_a_strict_function(server):
    more = {"tools": [PAINT], "parallel_tool_calls": False, "max_tokens": 60, "stop": ["</tool_call>"]}
    said, reason, _ = ask(server, logit_bias={str(CALL): 100, str(THINK): -100}, **more)
    assert reason == "tool_calls"
    (call,) = said["tool_calls"]
    assert {*json.loads(call["function"]["arguments"])} == {"color"}
    said, _, _ = ask(server, logit_bias={str(CALL): -100, str(THINK): -100}, **more)
    assert "tool_calls" not in said
    assert said["content"]


def test_thinking_is_bounded_without_a_grammar_and_in_company(server):
    bodies = [{"thinking_token_budget": n, "logit_bias": OPENS, "max_tokens": 20, "seed": n} for n in range(1, 7)]
    bodies.insert(3, {"max_tokens": 20})
    alone = [ask(server, **body) for body in bodies]
    # The bias opens the reasoning again and again, and the rest of its budget is none.
    assert [count for _, _, count in alone] == [1, 2, 3, alone[3][2], 4, 5, 6]
    with ThreadPoolExecutor(len(bodies)) as pool:
        assert list(pool.map(lambda body: ask(server, **body), bodies)) == alone


def test_a_stream_counts_reasoning_in_its_usage(server):
    body = {
        "messages": [{"role": "user", "content": "Paint it."}],
        "max_tokens": 30,
        "thinking_token_budget": 5,
        "logit_bias": OPENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).text
    usage = json.loads(text.split("\n\n")[-3].removeprefix("data: "))["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 5}

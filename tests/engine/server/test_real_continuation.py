"""The real model: an answer that is cut and goes on has the tokens, the text and the log-probabilities that it has
without a cut."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.engine.server.relay_model import HEADERS, Choice, Kept, frames
from tests.engine.server.test_continuation import told, whole

pytestmark = pytest.mark.slow

PROMPT = "Once upon a time there was a 🐈 and a 🐕:"
SAMPLED = {"temperature": 1.0, "seed": 5}
CASES = {
    "greedy, with log-probabilities": {"temperature": 0, "logprobs": 2},
    "greedy, with penalties": {"temperature": 0, "frequency_penalty": 1.5, "repetition_penalty": 1.3},
    # Says characters of several tokens: one of the cuts is within one.
    "seeded": {**SAMPLED, "top_p": 0.9},
    "seeded, with penalties, a bias and stops": {
        **{**SAMPLED, "presence_penalty": 1.0, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
        **{"logit_bias": {"28": 4.0, "198": -100}, "min_tokens": 16, "stop": ["the", "a "], "stop_token_ids": [30]},
    },
    "of a grammar": {**SAMPLED, "structured_outputs": {"regex": "The (cat|dog) said: [A-Z][a-z ]{4,30}[.!]"}},
    "choices": {**SAMPLED, "ignore_eos": True, "n": 2},
}
WHOLE = ("greedy, with penalties", "seeded, with penalties, a bias and stops", "choices")
"""Cases that are tested without streaming, too; test_continuation.py has every form of an answer."""


def tells(comments):
    """True if a frame has tokens."""
    return any(comment.startswith("t ") for comment in comments)


def ask(http, body, path="/v1/completions"):
    answer = http.post(path, json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    return answer.text


def continued(http, body, found, cut, path="/v1/completions"):
    """State of a relay after an answer that is cut behind a frame, and again after each continuation."""
    kept = Kept([Choice() for _ in range(body.get("n", 1))])
    kept.read(found[:cut])
    while not kept.complete:
        kept.read(frames(ask(http, body | kept.cut(), path)))
    if not body.get("stream"):
        return whole(kept.whole)
    return told(kept.data if kept.data[-1:] == ["[DONE]"] else [*kept.data, "[DONE]"], "")


@pytest.mark.parametrize(("case", "stream"), [*((case, True) for case in CASES), *((case, False) for case in WHOLE)])
def test_a_cut_answer_equals_one_without_a_cut(server, case, stream):
    body = {"prompt": PROMPT, "max_tokens": 24, "stream": stream, **CASES[case]}
    with httpx.Client(base_url=server.url, timeout=120) as http, ThreadPoolExecutor() as together:
        plain = http.post("/v1/completions", json=body, headers={"x-request-id": "one"})
        lines = [line.removeprefix("data: ") for line in plain.text.split("\n\n") if line]
        expected = told(lines, "") if stream else whole(plain.json())
        found = frames(ask(http, body))
        held = [number for number, (comments, data) in enumerate(found, 1) if tells(comments) and data is None]
        assert held or case != "seeded"
        cuts = sorted({3, len(found) // 2, max(0, len(found) - 4), *held[:1]})
        # At once: then a step computes a token of each.
        for cut, seen in zip(cuts, together.map(lambda cut: continued(http, body, found, cut), cuts), strict=True):
            for each in (seen, expected):
                each.get("usage", {}).pop("prompt_tokens_details", None)  # the prompt may be cached by now
            assert seen == expected, f"cut behind frame {cut} of {len(found)}"


def test_a_drawn_seed_is_told_and_continues_the_same_stream_of_random_numbers(server):
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 1.0, "n": 2, "stream": True, "ignore_eos": True}
    with httpx.Client(base_url=server.url, timeout=120) as http:
        found = frames(ask(http, body))
        expected = Kept([Choice(), Choice()])
        expected.read(found)
        assert None not in [each.seed for each in expected.choices]
        kept = Kept([Choice(), Choice()])
        kept.read(found[: len(found) // 2])
        rest = frames(ask(http, body | kept.cut()))
        assert not any(comment.startswith("s") for comments, _ in rest for comment in comments)
        kept.read(rest)
    assert kept.choices == expected.choices
    assert told(kept.data, "")[1] == told(expected.data, "")[1]


TOOL = {
    "type": "function",
    "function": {
        "name": "paint",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"color": {"type": "string", "minLength": 3, "maxLength": 12}, "coats": {"maximum": 9}},
            "required": ["color", "coats"],
        },
    },
}
SHAPE = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 4, "maxLength": 16}},
    "required": ["name"],
}
BOUND = {
    "demanded calls": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    "JSON of a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SHAPE}}},
}


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder"])
def test_greedy_tool_calls_and_json_that_are_cut_equal_those_without_a_cut(own_server, parser):
    server = own_server("--tool-call-parser", parser)
    with httpx.Client(base_url=server.url, timeout=120) as http:
        for fields in BOUND.values():
            messages = [{"role": "user", "content": "Paint the door."}]
            body = {"messages": messages, "max_tokens": 64, "temperature": 0, **fields}
            path = "/v1/chat/completions"
            plain = http.post(path, json=body, headers={"x-request-id": "one"})
            assert plain.status_code == 200, plain.text
            (expected,) = whole(plain.json())["choices"]
            assert ("tools" in fields) == bool(expected["message"].get("tool_calls"))
            found = frames(ask(http, body, path))
            for cut in (2, len(found) // 2, len(found) - 2):
                (seen,) = continued(http, body, found, cut, path)["choices"]
                assert seen == expected, f"cut behind frame {cut} of {len(found)}"

"""Answers that are cut between any two frames and go on at another replica are what they are without a cut."""

import asyncio
import json
from itertools import chain, cycle, islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.server.conftest import Fake
from tests.engine.server.fake_engine import EOS, connected, server_config, until
from tests.engine.server.relay_model import HEADERS, Choice, Kept, Model, frames

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = "aé€😀 b\nxyxx zé"


def repeating(prompt, seed):
    """A text of characters of 1 to 4 bytes, for each seed from another place on."""
    text = list(TEXT.encode())
    return list(islice(cycle(text), seed % 7, seed % 7 + 200))


def told(data, path):
    """Choices that a client reads from the events of a stream."""
    assert data[-1] == "[DONE]"
    said = {}
    for event in map(json.loads, data[:-1]):
        assert "error" not in event
        said.setdefault("head", (event.get("id"), event.get("object"), event.get("model")))
        if path.endswith("generate"):
            one = said.setdefault(event.get("index", 0), {"text": "", "tokens": [], "logprobs": [], "reasons": []})
            one["text"] += event["text"]
            one["tokens"] += event["tokens"]
            one["logprobs"] += event.get("logprobs", [])
            one["reasons"] += [event["finish_reason"]] if "finish_reason" in event else []
            continue
        if not event["choices"]:
            assert "usage" not in said
            said["usage"] = event["usage"]
        for choice in event["choices"]:
            one = said.setdefault(
                choice["index"], {"text": "", "roles": 0, "tokens": [], "logprobs": [], "reasons": [], "prompts": 0}
            )
            delta = choice.get("delta", {})
            one["roles"] += "role" in delta
            one["text"] += choice.get("text", delta.get("content", ""))
            one["tokens"] += choice.get("token_ids") or []
            one["prompts"] += "prompt_token_ids" in choice
            one["reasons"] += [choice["finish_reason"]] if choice["finish_reason"] else []
            scores = choice["logprobs"] or {}
            one["logprobs"] += scores.get("content") or list(
                zip(scores.get("tokens", []), scores.get("token_logprobs", []), strict=True)
            )
    return said


def whole(body):
    body = dict(body)
    for each in (body, *body.get("choices", ())):
        each.pop("timings", None)
    body.pop("created", None)
    return body


async def check_cuts(body, path, scripts, pauses, cuts):
    """Cuts an answer behind some of its frames, and goes on; `cuts`: chooses them, and those of the rest."""
    fake = Fake(*await connected(server_config()))
    model = Model(fake, scripts, pauses)
    try:
        streamed = body.get("stream", False)
        plain = await fake.http.post(path, json=body, headers={"x-request-id": "one"})
        assert plain.status_code == 200, plain.text
        lines = [line.removeprefix("data: ") for line in plain.text.split("\n\n") if line]
        expected = told(lines, path) if streamed else whole(plain.json())
        answer = await fake.http.post(path, json=body, headers=HEADERS)
        assert (answer.status_code, answer.headers["x-inflight-progress"]) == (200, "1")
        found = frames(answer.text)
        number = body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1)

        def ended(kept):
            return told(kept.data, path) if streamed else whole(kept.whole)

        kept = Kept([Choice() for _ in range(number)])
        kept.read(found)
        assert ended(kept) == expected
        usage = kept.usage
        for cut in cuts(len(found)):
            kept = Kept([Choice() for _ in range(number)])
            kept.read(found[:cut])
            again = True
            while not kept.complete:
                answer = await fake.http.post(path, json=body | kept.cut(), headers=HEADERS)
                assert answer.status_code == 200, answer.text
                rest = frames(answer.text)
                # Some are cut once more, in the middle.
                again, more = False, len(rest) // 2 if again and cut % 3 == 0 else len(rest)
                kept.read(rest[:more])
            if streamed and kept.data[-1:] != ["[DONE]"]:
                kept.data.append("[DONE]")  # the usage was read: nothing else follows
            assert ended(kept) == expected, f"cut behind frame {cut} of {found}"
            assert {**kept.usage, "cached_tokens": 0} == {**usage, "cached_tokens": 0}
        await until(lambda: not len(fake.service.registry))
        assert not fake.service.admission.waiting.num_requests
        return model.given
    finally:
        await model.close()


def every(number):
    return range(number + 1)


CASES = {
    "completion": ("/v1/completions", {"prompt": "p", "max_tokens": 24}),
    "choices": ("/v1/completions", {"prompt": ["p", "q"], "n": 2, "max_tokens": 9}),
    "one of whose choices stops": ("/v1/completions", {"prompt": "p", "n": 3, "max_tokens": 12, "stop": "\nxy"}),
    "stop strings": ("/v1/completions", {"prompt": "p", "max_tokens": 40, "stop": ["b\nxq", "yxx z", "x z"]}),
    "min_tokens": ("/v1/completions", {"prompt": "p", "max_tokens": 40, "stop": ["xyx"], "min_tokens": 30}),
    "stop token": ("/v1/completions", {"prompt": "p", "max_tokens": 40, "stop_token_ids": [ord("z")]}),
    "echo": ("/v1/completions", {"prompt": "pé", "max_tokens": 6, "echo": True}),
    "token ids": ("/v1/completions", {"prompt": "p", "max_tokens": 20, "return_token_ids": True}),
    "log-probabilities": (
        "/v1/completions",
        {"prompt": "p", "max_tokens": 20, "logprobs": 1, "stop": ["b\nxq", "yxq"]},
    ),
    "both": (
        "/v1/completions",
        {"prompt": "p", "max_tokens": 20, "logprobs": 0, "return_token_ids": True, "stop": ["é€q", "xxx"]},
    ),
    "chat": ("/v1/chat/completions", {**CHAT, "max_tokens": 20, "logprobs": True}),
    "chat, choices": ("/v1/chat/completions", {**CHAT, "max_tokens": 8, "n": 2, "stop": "yxx"}),
    "generate": ("/v1/generate", {"prompt": "p", "max_tokens": 20, "stop": "xyxq"}),
    "generate, log-probabilities": ("/v1/generate", {"prompt": "p", "max_tokens": 20, "logprobs": 1, "n": 2}),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", CASES)
async def test_an_answer_cut_behind_any_frame_goes_on_as_if_it_was_not(name, stream):
    path, body = CASES[name]
    body = {**body, "seed": 3, "temperature": 1.0, "stream": stream}
    if stream and path != "/v1/generate":
        body["stream_options"] = {"include_usage": True}
    given = await check_cuts(body, path, repeating, 1, every)
    scored = not stream and "logprobs" in body
    assert (max(given) > 3) is not scored  # those begin anew


SCRIPTS = st.lists(st.sampled_from([*"ab é€xy".encode(), EOS, 0xFF, 0xC3]), min_size=1, max_size=24)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_answer_cut_anywhere_goes_on_as_if_it_was_not(data):
    scripts = [data.draw(SCRIPTS) for _ in range(3)]
    stops = data.draw(st.lists(st.text("abéxy ", min_size=1, max_size=3), max_size=2))
    body = {
        "prompt": "p",
        "n": data.draw(st.integers(1, 2)),
        "seed": 0,
        "max_tokens": data.draw(st.integers(1, 24)),
        "stream": data.draw(st.booleans()),
        **data.draw(
            st.sampled_from(
                [{}, {"logprobs": 1}, {"return_token_ids": True}, {"logprobs": 0, "return_token_ids": True}]
            )
        ),
        **({"stop": stops} if stops else {}),
    }
    path = "/v1/completions"
    if data.draw(st.booleans()):
        path = "/v1/generate"
        body.pop("return_token_ids", None)
    body["min_tokens"] = data.draw(st.integers(0, body["max_tokens"]))

    def script(prompt, seed):
        return list(
            islice(chain(cycle(each + 1 if each == EOS else each for each in scripts[seed])), body["min_tokens"])
        ) + list(islice(cycle(scripts[seed]), 40))

    def cuts(number):
        return data.draw(st.lists(st.integers(0, number), min_size=1, max_size=4), label="cuts")

    asyncio.run(check_cuts(body, path, script, data.draw(st.integers(1, 5)), cuts))

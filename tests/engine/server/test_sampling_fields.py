"""vLLM's fields for the choice of tokens and the end of an answer's text, and OpenAI's notes of a caller."""

import asyncio
import json

import pytest

from inflight_engine.output import TokenLogprobs
from inflight_engine.request import FinishReason, token_mask
from inflight_settings.engine import EngineConfig
from inflight_settings.scheduling import ServiceClass
from tests.engine.server.fake_engine import EOS, until
from tests.engine.server.test_requests import events

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES = {COMPLETIONS: {"prompt": "hello"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
CLASSES = EngineConfig("fake", classes=(ServiceClass("interactive"), ServiceClass("batch")))


def start(fake, path=COMPLETIONS, **body):
    return asyncio.create_task(fake.post(path, **{**BODIES[path], **body}))


async def sampled(fake, path=COMPLETIONS, **body):
    """The sampling parameters that reach the engine."""
    call = start(fake, path, **body)
    await until(lambda: fake.engine.requests or call.done())
    assert fake.engine.requests, call.result().text
    fake.engine.report(finished=[(0, FinishReason.STOP)])
    await call
    return fake.engine.requests[0].sampling


async def answered(fake, tokens, reason=FinishReason.STOP, path=COMPLETIONS, **body):
    """The last chunk or the whole answer, and all text, where the engine samples these tokens."""
    call = start(fake, path, **body)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 1)])
    for token in tokens:
        fake.engine.report(tokens={1: token})
    fake.engine.report(finished=[(0, reason)])
    answer = await call
    if not body.get("stream"):
        (choice,) = answer.json()["choices"]
        return choice, choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    choices = [json.loads(each)["choices"][0] for each in events(answer.text)[:-1]]
    return choices[-1], "".join(choice["text"] for choice in choices)


@pytest.mark.parametrize("path", BODIES)
async def test_rules_of_tokens_reach_the_engine(make_fake, path):
    fields = {"bad_words": ["ab", " c"], "allowed_token_ids": [97, 98, 97]}
    sampling = await sampled(await make_fake(), path, **fields)
    assert sampling.allowed_tokens == token_mask([97, 98])
    # A bit for each token up to the largest: a list of a whole vocabulary is short, for each of `n` choices.
    assert len(sampling.allowed_tokens) == 16
    # As in vLLM: the form with a space stands where it has as many tokens.
    assert sampling.bad_words == (tuple(b"ab"), tuple(b"c"))
    assert sampling.has_token_rules
    assert not (await sampled(await make_fake(), path)).has_token_rules


@pytest.mark.parametrize("path", BODIES)
async def test_named_log_probabilities_reach_the_engine_and_stand_in_the_answer(make_fake, path):
    fake = await make_fake()
    asked = {"logprobs": True} if path == CHAT else {"logprobs": 1}
    call = start(fake, path, logprob_token_ids=[98, 97], **asked)
    await until(lambda: fake.engine.requests)
    assert fake.engine.requests[0].sampling.logprob_token_ids == (98, 97)
    reported = TokenLogprobs(1, -0.5, [98, 97], [-3.0, -4.0])
    fake.engine.report(admitted=[(0, 1)], tokens={1: 99}, logprobs=[reported], finished=[(0, FinishReason.LENGTH)])
    logprobs = (await call).json()["choices"][0]["logprobs"]
    if path == CHAT:
        assert [each["token"] for each in logprobs["content"][0]["top_logprobs"]] == ["c", "b", "a"]
    else:
        assert logprobs["top_logprobs"] == [{"b": -3.0, "a": -4.0, "c": -0.5}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "tokens", "text", "reason"),
    [
        ({"stop": ["d", "bc"]}, b"abcd", "a", "bc"),
        ({"stop": ["d", "bc"], "include_stop_str_in_output": True}, b"abcd", "abc", "bc"),
        ({"stop_token_ids": [98]}, b"ab", "a", 98),
        ({"stop_token_ids": [98], "include_stop_str_in_output": True}, b"ab", "ab", 98),
        ({}, b"ab\x00", "ab", None),
        ({"stop_token_ids": [EOS]}, b"ab\x00", "ab", None),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, b"ab\x00", "ab", EOS),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, b"ab\x00", "ab<end>", None),
        ({"skip_special_tokens": False, "ignore_eos": True}, b"a\x00b", "a<end>b", None),
        ({"skip_special_tokens": True, "spaces_between_special_tokens": False}, b"ab", "ab", None),
    ],
)
async def test_the_end_of_a_text_and_its_reason(make_fake, fields, tokens, text, reason, stream):
    end, found = await answered(await make_fake(), tokens, stream=stream, **fields)
    assert (found, end["finish_reason"], end["stop_reason"]) == (text, "stop", reason)


async def test_an_answer_that_is_cut_off_has_no_stop_reason(make_fake):
    end, _ = await answered(await make_fake(), b"ab", FinishReason.LENGTH, CHAT, stop="x")
    assert (end["finish_reason"], end["stop_reason"]) == ("length", None)


async def test_log_probabilities_of_a_stop_string_stand_where_its_text_does(make_fake):
    fake = await make_fake()
    call = start(fake, stop="bc", include_stop_str_in_output=True, logprobs=0)
    await until(lambda: fake.engine.requests)
    fake.engine.report(admitted=[(0, 1)])
    for token in b"abc":
        fake.engine.report(tokens={1: token}, logprobs=[TokenLogprobs(1, -1.0, [], [])])
    (choice,) = (await call).json()["choices"]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("abc", ["a", "b", "c"])


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, b"llo"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, b"hel"),
        ({"truncate_prompt_tokens": 99}, b"hello"),
        ({"truncate_prompt_tokens": -1}, b"hello"),
        ({"truncate_prompt_tokens": -1, "prompt": "x" * 500}, b"x" * 99),
        ({"truncate_prompt_tokens": 2, "prompt": list(b"hello")}, b"lo"),
    ],
)
async def test_a_prompt_keeps_as_many_tokens_as_asked_for(make_fake, fields, kept):
    fake = await make_fake()
    call = start(fake, echo=True, **{"max_tokens": 1} | fields)
    await until(lambda: fake.engine.requests)
    assert bytes(fake.engine.requests[0].prompt_token_ids[::4]) == kept
    fake.engine.answer(0, "!")
    answer = (await call).json()
    assert (answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]) == (kept.decode() + "!", len(kept))


@pytest.mark.parametrize("path", BODIES)
async def test_notes_of_the_caller_change_nothing_in_the_request(make_fake, path):
    notes = {"prompt_cache_key": "k", "safety_identifier": "user-1", "user": "u"}
    plain, noted = (
        await sampled(await make_fake(), path, seed=1),
        await sampled(await make_fake(), path, seed=1, **notes),
    )
    assert plain == noted


@pytest.mark.parametrize(("tier", "name"), [("auto", "interactive"), ("default", "interactive"), ("batch", "batch")])
@pytest.mark.parametrize("stream", [False, True])
async def test_service_tier_names_a_class_which_the_answer_names(make_fake, tier, name, stream):
    fake = await make_fake(engine=CLASSES)
    call = start(fake, CHAT, service_tier=tier, stream=stream)
    await until(lambda: fake.engine.requests)
    assert fake.engine.requests[0].scheduling.service_class == name
    fake.engine.answer(0, "x")
    answer = await call
    first = json.loads(events(answer.text)[0]) if stream else answer.json()
    assert first["service_tier"] == name


async def test_equal_servers_have_equal_fingerprints_and_others_not(make_fake):
    found = []
    for changes in ({}, {}, {"engine": EngineConfig("other")}):
        fake = await make_fake(**changes)
        call = start(fake)
        await until(lambda fake=fake: fake.engine.requests)
        fake.engine.answer(0, "x")
        found.append((await call).json()["system_fingerprint"])
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bad_words": "a"}, "bad_words"),
        ({"bad_words": [1]}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": ["a"] * 1025}, "bad_words"),
        ({"bad_words": ["a" * 1025]}, "bad_words"),
        ({"bad_words": ["a" * 1000] * 20}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [256]}, "allowed_token_ids"),
        ({"allowed_token_ids": ["1"]}, "allowed_token_ids"),
        ({"allowed_token_ids": [EOS], "min_tokens": 1}, "allowed_token_ids"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens"),
        ({"spaces_between_special_tokens": 0}, "spaces_between_special_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 100}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 1.5}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"truncation_side": "middle", "truncate_prompt_tokens": 1}, "truncation_side"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"logprob_token_ids": [256], "logprobs": 1}, "logprob_token_ids"),
        ({"logprob_token_ids": [1] * 129, "logprobs": 1}, "logprob_token_ids"),
        ({"logprob_token_ids": [1], "logprobs": 1, "echo": True}, "logprob_token_ids"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"service_tier": 3}, "service_tier"),
        ({"service_tier": "batch", "class": "interactive"}, "service_tier"),
        ({"prompt_cache_key": 1}, "prompt_cache_key"),
        ({"safety_identifier": []}, "safety_identifier"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(make_fake, fields, param):
    fake = await make_fake(engine=CLASSES)
    answer = await fake.post(COMPLETIONS, **BODIES[COMPLETIONS], **fields)
    assert (answer.status_code, answer.json()["error"]["param"].partition(".")[0]) == (400, param)

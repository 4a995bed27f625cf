"""Answers that begin with their prompts, and log-probabilities of prompts, in OpenAI's and in vLLM's shape."""

import asyncio
import json

import numpy as np
import pytest

from inflight_engine.messages import EngineFailed
from inflight_engine.output import PromptLogprobs, TokenLogprobs
from inflight_engine.request import FinishReason
from inflight_engine.server.answers import writer
from inflight_engine.server.answers.logprobs import with_prompt
from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.requests.prompt_scores import PromptScores
from tests.base.virtual_time import in_virtual_time
from tests.engine.server.fake_engine import EOS, until
from tests.engine.server.test_requests import events, usage
from tests.engine.server.test_restart import die, restart

pytestmark = pytest.mark.usefixtures("virtual_clock")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
Z = ord("Z")


def scores(slot, first, logprobs, ranks=None, top=(Z,)):
    """Each token with these log-probabilities, and `top` as the likeliest, of -0.25, -0.5, ..."""
    n = len(logprobs)
    return PromptLogprobs(
        slot,
        first,
        np.array(logprobs, np.float32).tobytes(),
        np.array(ranks or [7] * n, np.int32).tobytes(),
        np.tile(np.array(top, np.int32), (n, 1)).tobytes(),
        np.tile(-0.25 * np.arange(1, len(top) + 1, dtype=np.float32), (n, 1)).tobytes(),
    )


async def engine_has(fake, count=1):
    await until(lambda: len(fake.engine.requests) == count)
    return [fake.engine.requests[i].sampling for i in range(count)]


def post(fake, path=COMPLETIONS, **body):
    return asyncio.create_task(fake.post(path, **({"messages": MESSAGES} if path == CHAT else {}), **body))


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"echo": True}, (None, None)),
        ({"logprobs": 2}, (2, None)),
        ({"echo": True, "logprobs": 2}, (2, 2)),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 7}, (2, 7)),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 1}, (2, 2)),
        ({"prompt_logprobs": 0}, (None, 0)),
    ],
)
@in_virtual_time
async def test_the_engine_is_asked_for_as_many_as_are_shown_anywhere(make_fake, body, asked):
    fake = await make_fake()
    call = post(fake, prompt="h", **body)
    (sampling,) = await engine_has(fake)
    assert (sampling.logprobs, sampling.prompt_logprobs) == asked
    fake.engine.report(finished=[(0, FinishReason.ABORT)])
    await call


@pytest.mark.parametrize(("prompt", "text"), [("né", "né"), (list("né".encode()), "né"), ([[98, 99]], "bc")])
@in_virtual_time
async def test_the_text_is_the_prompt_as_it_was_given_and_then_the_answer(make_fake, prompt, text):
    fake = await make_fake()
    call = post(fake, prompt=prompt, echo=True)
    await engine_has(fake)
    fake.engine.answer(0, " yes")
    assert (await call).json()["choices"][0]["text"] == text + " yes"


@in_virtual_time
async def test_a_stop_string_in_the_prompt_stops_nothing(make_fake):
    fake = await make_fake()
    call = post(fake, prompt="a END b", echo=True, stop="END")
    await engine_has(fake)
    fake.engine.answer(0, " c END")
    assert (await call).json()["choices"][0]["text"] == "a END b c "


@in_virtual_time
async def test_log_probabilities_begin_with_those_of_the_prompt(make_fake):
    """Reported chunk by chunk, one of them twice, as after a preemption."""
    fake = await make_fake()
    call = post(fake, prompt="né!", echo=True, logprobs=1, max_tokens=1)
    await engine_has(fake)
    fake.engine.report(admitted=[(0, 2)], prompt_logprobs=[scores(2, 1, [-1.0])])
    fake.engine.report(prompt_logprobs=[scores(2, 1, [-1.0, float("-inf")])])
    fake.engine.report(
        tokens={2: Z},
        prompt_logprobs=[scores(2, 3, [-3.0])],
        logprobs=[TokenLogprobs(2, -0.5, [Z], [-0.5])],
        finished=[(0, FinishReason.LENGTH)],
    )
    answer = (await call).json()
    assert answer["choices"][0] == {
        "index": 0,
        "text": "né!Z",
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": {
            "tokens": ["n", r"\xc3", r"\xa9", "!", "Z"],
            "token_logprobs": [None, -1.0, -9999.0, -3.0, -0.5],
            "top_logprobs": [
                None,
                {"Z": -0.25, r"\xc3": -1.0},
                {"Z": -0.25, r"\xa9": -9999.0},
                {"Z": -0.25, "!": -3.0},
                {"Z": -0.5},
            ],
            "text_offset": [0, 1, 1, 2, 3],
        },
    }
    assert answer["usage"] == usage(4, 1)


@in_virtual_time
async def test_the_one_token_that_harnesses_leave_out_is_there_even_where_it_is_a_stop_token(make_fake):
    fake = await make_fake()
    call = post(fake, prompt="ab", echo=True, logprobs=0, max_tokens=1)
    await engine_has(fake)
    fake.engine.report(
        admitted=[(0, 0)],
        tokens={0: EOS},
        prompt_logprobs=[scores(0, 1, [-1.0], top=())],
        logprobs=[TokenLogprobs(0, -0.5, [], [])],
        finished=[(0, FinishReason.STOP)],
    )
    choice = (await call).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
    assert choice["logprobs"]["tokens"] == ["a", "b", "<end>"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


def test_what_a_tokenizer_puts_in_front_of_a_prompt_takes_no_place_in_its_text():
    spelled = [b"<s>", b" Hello", b" w", "ö".encode()[:1], "ö".encode()[1:], b"rld"]
    prompt = PromptScores(range(6))
    prompt.add(scores(0, 1, [-1.0] * 5, top=()))
    nothing = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    shown = with_prompt(nothing, prompt, "Hello wörld", 0, lambda token_id: spelled[token_id])
    assert shown["text_offset"] == [0, 0, 5, 7, 7, 8]
    assert shown["tokens"][:3] == ["<s>", " Hello", " w"]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_a_prompt_alone_has_no_token_of_an_answer(make_fake, reason, stream):
    fake = await make_fake()
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    call = post(fake, prompt=["ab", "c"], n=2, echo=True, logprobs=1, max_tokens=0, **options)
    asked = await engine_has(fake, 4)
    assert [each.max_tokens for each in asked] == [1] * 4
    fake.engine.report(
        admitted=[(i, i) for i in range(4)],
        tokens=dict.fromkeys(range(4), EOS),
        prompt_logprobs=[scores(i, 1, [-1.0]) for i in range(2)],
        logprobs=[TokenLogprobs(i, -0.5, [Z], [-0.5]) for i in range(4)],
        finished=[(i, reason) for i in range(4)],
    )
    answer = await call
    if stream:
        *parts, last = [json.loads(each) for each in events(answer.text)[:-1]]
        choices, counts = [part["choices"][0] for part in parts], last["usage"]
        assert [choice["finish_reason"] for choice in choices] == [None, "length"] * 4
        choices = choices[::2]
    else:
        choices, counts = answer.json()["choices"], answer.json()["usage"]
        assert [choice["finish_reason"] for choice in choices] == ["length"] * 4
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "ab"), (1, "ab"), (2, "c"), (3, "c")]
    assert [choice["logprobs"]["token_logprobs"] for choice in choices] == [[None, -1.0]] * 2 + [[None]] * 2
    assert counts == usage(3, 0)


@in_virtual_time
async def test_the_first_event_of_a_stream_has_the_prompt_and_all_together_say_what_the_whole_answer_says(make_fake):
    said = []
    for stream in (False, True):
        fake = await make_fake()
        call = post(fake, prompt="hé", echo=True, logprobs=1, stream=stream)
        await engine_has(fake)
        fake.engine.report(admitted=[(0, 1)], prompt_logprobs=[scores(1, 1, [-1.0, -2.0])])
        for token in b" yes":
            fake.engine.report(tokens={1: token}, logprobs=[TokenLogprobs(1, -0.5, [Z], [-0.25])])
            await asyncio.sleep(0.005)
        fake.engine.report(finished=[(0, FinishReason.LENGTH)])
        answer = await call
        if not stream:
            said.append((answer.json()["choices"][0]["text"], answer.json()["choices"][0]["logprobs"]))
            continue
        choices = [json.loads(each)["choices"][0] for each in events(answer.text)[:-1]]
        assert len(choices) > 3
        assert choices[0]["text"].startswith("hé")
        assert choices[0]["logprobs"]["token_logprobs"][:4] == [None, -1.0, -2.0, -0.5]
        scored = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        joined = {name: [each for part in scored for each in part[name]] for name in scored[0]}
        said.append(("".join(choice["text"] for choice in choices), joined))
    assert said[0] == said[1]
    assert said[0][1]["text_offset"] == [0, 1, 1, 2, 3, 4, 5]


@in_virtual_time
async def test_prompt_logprobs_in_vllms_shape(make_fake):
    expected = [
        None,
        {
            "105": {"logprob": -2.0, "rank": 7, "decoded_token": "i"},
            "90": {"logprob": -0.25, "rank": 1, "decoded_token": "Z"},
        },
    ]
    fake = await make_fake()
    call = post(fake, prompt="hi", prompt_logprobs=1)
    await engine_has(fake)
    fake.engine.report(admitted=[(0, 0)], prompt_logprobs=[scores(0, 1, [-2.0], top=(Z, 91))])
    fake.engine.report(tokens={0: 97}, finished=[(0, FinishReason.LENGTH)])
    choice = (await call).json()["choices"][0]
    assert (choice["text"], choice["logprobs"]) == ("a", None)
    assert choice["prompt_logprobs"] == expected


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"return_token_ids": True}])
@in_virtual_time
async def test_prompt_logprobs_of_a_stream_are_those_of_the_whole_once_with_its_first_text(make_fake, path, more):
    if path == CHAT and "logprobs" in more:
        more = {"logprobs": True}
    prompt = "user:hi\n" if path == CHAT else "hi"
    found = []
    for stream in (False, True):
        fake = await make_fake()
        call = post(
            fake, path, **({} if path == CHAT else {"prompt": prompt}), prompt_logprobs=1, stream=stream, **more
        )
        await engine_has(fake)
        fake.engine.report(admitted=[(0, 0)], prompt_logprobs=[scores(0, 1, [-2.0] * (len(prompt) - 1))])
        for token in (97, 98):
            tokens = [TokenLogprobs(0, -0.5, [Z], [-0.5])] if "logprobs" in more else []
            fake.engine.report(tokens={0: token}, logprobs=tokens)
        fake.engine.report(finished=[(0, FinishReason.STOP)])
        answer = await call
        chunks = [json.loads(each) for each in events(answer.text)[:-1]] if stream else [answer.json()]
        places = [place for chunk in chunks for place in (chunk, *chunk["choices"]) if place.get("prompt_logprobs")]
        found.append([place["prompt_logprobs"] for place in places])
    assert found[0] == found[1]
    assert len(found[0]) == 1


@in_virtual_time
async def test_prompt_logprobs_of_a_chat_stand_beside_its_choices_and_need_no_answer(make_fake):
    fake = await make_fake()
    call = post(fake, CHAT, prompt_logprobs=1, max_tokens=0)
    await engine_has(fake)
    prompt = b"user:hi\n"
    reported = scores(0, 1, [-0.25] * 7, ranks=[1] * 7, top=(ord("s"),))
    fake.engine.report(
        admitted=[(0, 0)], tokens={0: 97}, prompt_logprobs=[reported], finished=[(0, FinishReason.LENGTH)]
    )
    answer = (await call).json()
    assert len(answer["prompt_logprobs"]) == len(prompt)
    # The likeliest one that is the prompt's own stands once.
    assert answer["prompt_logprobs"][1] == {"115": {"logprob": -0.25, "rank": 1, "decoded_token": "s"}}
    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == ("", "length")
    assert answer["usage"] == usage(8, 0)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "echo": 1}, "echo"),
        (COMPLETIONS, {"prompt": "a", "echo": True, "logprobs": 6}, "logprobs"),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0, "logprobs": 1}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "echo": True, "max_tokens": -1}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "echo": True, "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
        (COMPLETIONS, {"prompt": "a" * 100, "echo": True, "max_tokens": 0}, "prompt"),
        (CHAT, {"echo": True}, "echo"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"prompt_logprobs": True}, "prompt_logprobs"),
        ("/v1/generate", {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs"),
        ("/v1/generate", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ],
)
@in_virtual_time
async def test_what_cannot_be_is_refused_by_name(make_fake, path, body, param):
    fake = await make_fake()
    answer = await post(fake, path, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert param in error["message"]
    assert not fake.engine.requests


@in_virtual_time
async def test_a_request_whose_engine_is_lost_goes_on_at_the_next(make_fake):
    fake = await make_fake()
    call = post(fake, prompt="abc", echo=True, logprobs=0, max_tokens=2)
    await engine_has(fake)
    first = {"prompt_logprobs": [scores(0, 1, [-1.0, -2.0], top=())], "logprobs": [TokenLogprobs(0, -3.0, [], [])]}
    fake.engine.report(admitted=[(0, 0)], tokens={0: Z}, **first)
    await until(lambda: fake.service.counts.generation_tokens)
    await die(fake)
    await restart(fake)
    await engine_has(fake)
    again = {"prompt_logprobs": [scores(1, 1, [-5.0, -6.0], top=())], "logprobs": [TokenLogprobs(1, -7.0, [], [])]}
    fake.engine.report(admitted=[(0, 1)], tokens={1: Z}, finished=[(0, FinishReason.LENGTH)], **again)
    choice = (await call).json()["choices"][0]
    assert (choice["text"], choice["logprobs"]["token_logprobs"]) == ("abcZZ", [None, -5.0, -6.0, -3.0, -7.0])


@in_virtual_time
async def test_a_stream_whose_engine_is_lost_behind_its_first_token_goes_on_at_the_next(make_fake):
    fake = await make_fake()
    call = post(fake, prompt="abc", echo=True, logprobs=0, max_tokens=2, stream=True)
    await engine_has(fake)
    first = {"prompt_logprobs": [scores(0, 1, [-1.0, -2.0], top=())], "logprobs": [TokenLogprobs(0, -3.0, [], [])]}
    fake.engine.report(admitted=[(0, 0)], tokens={0: Z}, **first)
    fake.engine.send(EngineFailed("in the same read as the token"))
    await until(lambda: fake.service.session.phase is Phase.RESTARTING)
    await asyncio.sleep(0.01)
    await restart(fake)
    await engine_has(fake)
    again = {"prompt_logprobs": [scores(1, 1, [-5.0, -6.0], top=())], "logprobs": [TokenLogprobs(1, -7.0, [], [])]}
    fake.engine.report(admitted=[(0, 1)], tokens={1: Z}, finished=[(0, FinishReason.LENGTH)], **again)
    said = [json.loads(each)["choices"][0] for each in events((await call).text)[:-1]]
    assert "".join(choice["text"] for choice in said) == "abcZZ"
    scored = [each for choice in said if choice["logprobs"] for each in choice["logprobs"]["token_logprobs"]]
    assert scored == [None, -1.0, -2.0, -3.0, -7.0]


@in_virtual_time
async def test_many_log_probabilities_of_a_stream_are_formatted_in_a_thread_and_nothing_is_lost_behind_them(
    make_fake, monkeypatch
):
    fake, formatted, prompt = await make_fake(), [], "a" * 30
    to_thread = asyncio.to_thread

    async def slowly(function, *arguments):
        formatted.append(function)
        done = await to_thread(function, *arguments)
        await asyncio.sleep(0.05)
        return done

    monkeypatch.setattr(asyncio, "to_thread", slowly)
    monkeypatch.setattr(writer, "MANY_SCORED_TOKENS", 20)
    call = post(fake, prompt=prompt, echo=True, logprobs=0, stream=True)
    await engine_has(fake)
    formatted.clear()
    fake.engine.report(admitted=[(0, 0)], prompt_logprobs=[scores(0, 1, [-1.0] * 29, top=())])
    for token in b"xyz":
        fake.engine.report(tokens={0: token}, logprobs=[TokenLogprobs(0, -3.0, [], [])])
        await asyncio.sleep(0.005)
    fake.engine.report(finished=[(0, FinishReason.LENGTH)])
    answer = events((await call).text)
    said = [json.loads(each)["choices"][0] for each in answer[:-1]]
    assert answer[-1] == "[DONE]"
    assert "".join(choice["text"] for choice in said) == f"{prompt}xyz"
    assert [choice["finish_reason"] for choice in said if choice["finish_reason"]] == ["length"]
    assert len([each for choice in said if choice["logprobs"] for each in choice["logprobs"]["tokens"]]) == 33
    assert len(formatted) == 1


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_an_engine_that_fails_in_the_middle_of_the_prompt_gives_an_error(make_fake, stream):
    fake = await make_fake()
    call = post(fake, prompt="abc", echo=True, logprobs=0, stream=stream)
    await engine_has(fake)
    fake.engine.report(admitted=[(0, 0)], prompt_logprobs=[scores(0, 1, [-1.0], top=())])
    fake.engine.report(finished=[(0, FinishReason.ERROR)])
    assert (await call).status_code == 500

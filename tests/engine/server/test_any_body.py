"""Whatever a client sends, it is told what is wrong with it: never a 500, never silence."""

import asyncio
import json
import threading

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_engine.formats import forced_runs, schemas
from inflight_engine.formats.schemas import MAX_BYTES
from inflight_engine.grammars import sources
from inflight_engine.models.tokens.conversation import Wanted
from inflight_engine.server.bodies import chat_schema
from inflight_engine.server.bodies.chat_schema import ChatCompletionRequest
from inflight_engine.server.bodies.json_size import MAX_ITEMS
from inflight_engine.server.bodies.pooling_schema import EmbeddingRequest, RerankRequest, ScoreRequest
from inflight_engine.server.bodies.schema import CompletionRequest, GenerateRequest
from inflight_engine.server.http import endpoint, strict_json, tokenize
from inflight_engine.server.http.strict_json import LONG_BODY
from inflight_engine.server.http.tokenize import DetokenizeRequest, TokenizeRequest
from inflight_engine.server.messages.requests import CountTokensRequest, MessagesRequest
from inflight_engine.server.requests import registry
from inflight_engine.server.responses.requests import ResponsesRequest
from tests.engine.server.fake_engine import connected, server_config, until

PATHS = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/generate": GenerateRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/score": ScoreRequest,
    "/v1/rerank": RerankRequest,
}
# Lone surrogates are no text, but JSON can write them.
TEXT = st.text(st.one_of(st.characters(), st.sampled_from("\ud800\udfff\x00")), max_size=8)
NUMBERS = st.one_of(st.integers(), st.floats(), st.integers(-3, 300), st.floats(0, 2))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
TEXTS = st.one_of(TEXT, st.lists(TEXT, max_size=3), VALUES)
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "tool"]), "content": VALUES}))

TYPES = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "input_text", "what"])
ITEMS = st.dictionaries(
    st.sampled_from(["role", "content", "name", "arguments", "call_id", "output", "summary"]), VALUES
)
INPUTS = st.one_of(VALUES, MESSAGES, st.lists(st.builds(lambda kind, item: {"type": kind, **item}, TYPES, ITEMS)))


@st.composite
def calls(draw):
    path = draw(st.sampled_from(sorted(PATHS)))
    names = st.one_of(st.sampled_from(sorted(PATHS[path].model_fields)), TEXT)
    body = draw(st.dictionaries(names, VALUES, max_size=3))
    needed = {
        "prompt": draw(st.one_of(TEXT, VALUES)),
        "messages": draw(MESSAGES),
        "input": draw(INPUTS),
        "model": "fake",
        "query": draw(TEXTS),
        "documents": draw(TEXTS),
        "text_1": draw(TEXTS),
        "text_2": draw(TEXTS),
    }
    if path == "/tokenize":  # either
        del needed[draw(st.sampled_from(["prompt", "messages", "model"]))]
    if path == "/v1/score":  # one pair
        del needed["documents"]
    return path, {**{name: value for name, value in needed.items() if name in PATHS[path].model_fields}, **body}


@pytest.fixture(scope="module")
def post():
    """Sends a body to one server, whose engine does not answer: what is valid waits, and times out."""

    async def client():
        _, _, app = await connected(server_config(queue_timeout=0.01))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://engine")

    with asyncio.Runner() as runner:
        http = runner.run(client())
        json_content = {"content-type": "application/json"}
        yield lambda path, content: runner.run(http.post(path, content=content, headers=json_content))
        runner.run(http.aclose())


@settings(max_examples=60, deadline=None)
@given(st.lists(calls(), min_size=5, max_size=20))
def test_no_body_makes_the_server_fail(post, batch):
    for path, body in batch:
        content = json.dumps(body)
        answer = post(path, content)
        if answer.status_code == 200:
            assert "token" in path
            continue
        assert answer.status_code in (400, 404, 503, 504), (path, content, answer.text)
        assert answer.json()["error"]["message"]


LONG = "x" * LONG_BODY
CONVERSATION = [{"role": "user", "content": LONG}]
LONG_BODIES = {
    "/v1/chat/completions": {"messages": CONVERSATION},
    "/v1/completions": {"prompt": LONG},
    "/v1/responses": {"model": "fake", "input": CONVERSATION},
    "/v1/messages": {"model": "fake", "max_tokens": 1, "messages": CONVERSATION},
    "/v1/messages/count_tokens": {"model": "fake", "messages": CONVERSATION},
    "/tokenize": {"messages": CONVERSATION},
}


@pytest.mark.parametrize("path", LONG_BODIES)
@pytest.mark.parametrize("wrong", [{}, {"unknown": 1}])
async def test_a_long_body_is_validated_beside_the_event_loop_and_its_errors_are_the_same(
    make_fake, monkeypatch, path, wrong
):
    fake, threads = await make_fake(), set()

    def noted(convert):
        def note(*args, **kwargs):
            threads.add(threading.current_thread())
            return convert(*args, **kwargs)

        return note

    monkeypatch.setattr(strict_json, "decoded", noted(strict_json.decoded))
    monkeypatch.setattr(chat_schema.ChatMessage, "plain", noted(chat_schema.ChatMessage.plain))
    for method in ("parsing", "grammar"):
        monkeypatch.setattr(ChatCompletionRequest, method, noted(getattr(ChatCompletionRequest, method)))
    body = {**LONG_BODIES[path], **wrong}
    answer = await fake.post(path, **body)
    assert threads
    assert threading.current_thread() not in threads
    short = await fake.post(path, **json.loads(json.dumps(body).replace(LONG, "x" * 200)))
    assert threading.current_thread() in threads
    assert answer.status_code == short.status_code
    if wrong:
        assert answer.json() == short.json()
    assert wrong == {} or answer.json()["error"]["message"] == "unknown: this parameter is unknown"


async def test_a_long_body_that_is_no_json_is_refused_as_a_short_one(make_fake):
    fake = await make_fake()
    answers = [
        await fake.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        for content in ("{", "{" + " " * LONG_BODY, "[]", f'["{LONG}"]')
    ]
    assert [each.status_code for each in answers] == [400] * 4
    assert ["not JSON" in each.text for each in answers] == [True, True, False, False]


async def test_choices_beyond_the_queue_are_refused_before_anything_is_made_for_each(make_fake, monkeypatch):
    monkeypatch.setattr(endpoint, "continued_choices", None)
    answer = await (await make_fake()).post("/v1/completions", prompt=["a"] * 9, n=128)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


def calling(arguments):
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "assistant", "tool_calls": [call]}]}


@pytest.mark.parametrize("item", ["1", "[]", '""'])
async def test_arguments_of_too_many_values_are_refused_before_they_are_decoded(make_fake, monkeypatch, item):
    monkeypatch.setattr(chat_schema, "json", None)
    written = f'{{"a":[{",".join([item] * (MAX_ITEMS + 2))}]}}'
    answer = await (await make_fake()).post("/v1/chat/completions", **calling(written))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "messages.0.tool_calls.0.function.arguments"
    assert f"has more than {MAX_ITEMS}" in error["message"]


async def test_arguments_may_hold_a_text_of_many_commas(make_fake):
    answer = await (await make_fake(queue_timeout=0.01)).post(
        "/v1/chat/completions", **calling(json.dumps({"text": "1,[{" * MAX_ITEMS}))
    )
    assert answer.status_code == 504


async def test_token_ids_of_more_than_64_bits_are_refused_before_a_long_list_is_validated(make_fake):
    fake = await make_fake()
    for number in (2**63, 10**30):
        answer = await fake.post("/v1/generate", prompt=[1] * 20_000 + [number])
        assert answer.status_code == 400
        assert "prompt" in answer.json()["error"]["message"]
    for wrong in (["a"], [None], [-1]):
        assert (await fake.post("/v1/generate", prompt=[1] * 20_000 + wrong)).status_code == 400


async def test_a_long_name_of_a_field_is_not_all_in_the_error(make_fake):
    for name in ("x" * 100_000, "x" * 200):
        error = (await (await make_fake()).post("/v1/completions", prompt="a", **{name: 1})).json()["error"]
        assert error["message"] == f"{'x' * 128}: this parameter is unknown"
        assert error["param"] == "x" * 128


LONG_SCHEMA = {"description": "x" * MAX_BYTES}
LONG_GRAMMARS = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": LONG_SCHEMA}}},
    "json": {"structured_outputs": {"json": LONG_SCHEMA}},
    "written": {"structured_outputs": {"json": json.dumps(LONG_SCHEMA) + " " * 4 * MAX_BYTES}},
    "regex": {"structured_outputs": {"regex": "x" * (MAX_BYTES + 1)}},
    "grammar": {"structured_outputs": {"grammar": "x" * (MAX_BYTES + 1)}},
    "choice": {"structured_outputs": {"choice": ["x" * 1024] * 513}},
    "tag": {
        "response_format": {
            "type": "structural_tag",
            "structures": [{"begin": "<", "schema": LONG_SCHEMA, "end": ">"}],
            "triggers": ["<"],
        }
    },
}


@pytest.mark.parametrize("body", LONG_GRAMMARS.values(), ids=LONG_GRAMMARS)
async def test_what_is_longer_than_a_grammar_may_be_is_refused_before_one_is_made(make_fake, monkeypatch, body):
    for module, name in ((schemas, "for_llguidance"), (forced_runs, "of_regex"), (sources, "LLMatcher")):
        monkeypatch.setattr(module, name, None)
    answer = await (await make_fake()).post("/v1/completions", prompt="a", **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], "characters" in error["message"]) == ("invalid_grammar", True)


async def test_texts_and_tokens_that_are_only_converted_are_bounded(make_fake, monkeypatch):
    monkeypatch.setattr(tokenize, "WANTED", Wanted(150))
    monkeypatch.setattr(tokenize, "MAX_SPELLED", 150)
    fake = await make_fake()
    assert (await fake.post("/tokenize", prompt="a" * 150)).json()["count"] == 150
    assert (await fake.post("/detokenize", tokens=[97] * 150)).json() == {"prompt": "a" * 150}
    for path, body in (("/tokenize", {"prompt": "a" * 151}), ("/detokenize", {"tokens": [97] * 151})):
        answer = await fake.post(path, **body)
        assert (answer.status_code, "more than 150" in answer.text) == (400, True)


async def test_a_prompt_of_many_answers_is_packed_and_sent_once(make_fake, monkeypatch):
    packed, pack = [], registry._packed
    monkeypatch.setattr(registry, "_packed", lambda token_ids: packed.append(list(token_ids)) or pack(token_ids))
    fake = await make_fake()
    answer = asyncio.create_task(fake.post("/v1/completions", prompt=[[1, 2], [3]], n=2))
    await until(lambda: len(fake.engine.requests) == 4)
    assert [np.frombuffer(each.prompt_token_ids, "<i4").tolist() for each in fake.engine.requests.values()] == [
        *([[1, 2]] * 2),
        *([[3]] * 2),
    ]
    assert sorted(each for each in packed if each) == [[1, 2], [3]]
    assert [np.frombuffer(each, "<i4").tolist() for each in fake.engine.prompts] == [[1, 2], [3]]
    answer.cancel()

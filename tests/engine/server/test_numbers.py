"""Numbers of any size and kind, in every place of every body: an answer, or an error that names the place."""

import asyncio
import json

import pytest

from inflight_engine.formats.choose import ModelText
from inflight_engine.models.checkpoints.pooling_config import PoolingConfig
from inflight_engine.request import FinishReason
from inflight_engine.server.bodies.chat_schema import ChatCompletionRequest
from inflight_engine.server.bodies.pooling_schema import EmbeddingRequest, RerankRequest, ScoreRequest
from inflight_engine.server.bodies.schema import CompletionRequest, GenerateRequest
from inflight_engine.server.http.tokenize import DetokenizeRequest, TokenizeRequest
from inflight_engine.server.messages.requests import CountTokensRequest, MessagesRequest
from inflight_engine.server.responses.requests import ResponsesRequest
from tests.engine.server.fake_engine import ByteTokenizer

MESSAGES = [{"role": "user", "content": "?"}]
CHAT = {"messages": MESSAGES}
ENDPOINTS = {
    "/v1/chat/completions": (ChatCompletionRequest, CHAT),
    "/v1/completions": (CompletionRequest, {"prompt": "?"}),
    "/v1/generate": (GenerateRequest, {"prompt": "?"}),
    "/v1/responses": (ResponsesRequest, {"model": "fake", "input": "?"}),
    "/v1/messages": (MessagesRequest, {"model": "fake", "max_tokens": 5, **CHAT}),
    "/v1/messages/count_tokens": (CountTokensRequest, {"model": "fake", **CHAT}),
    "/v1/embeddings": (EmbeddingRequest, {"input": "?"}),
    "/v1/score": (ScoreRequest, {"text_1": "a", "text_2": "b"}),
    "/v1/rerank": (RerankRequest, {"query": "a", "documents": ["b", "c"]}),
    "/tokenize": (TokenizeRequest, CHAT),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
}
COMPANY = {
    "top_logprobs": {"logprobs": True, "include": ["message.output_text.logprobs"]},
    "logprob_token_ids": {"logprobs": 1},
    "truncation_side": {"truncate_prompt_tokens": 1},
}
"""Fields without which a field is refused."""
LONG = "1" + "0" * 30
NOT_JSON = ("1e999", "1" + "0" * 5000)
NUMBERS = [*NOT_JSON, LONG, f"-{LONG}", "1" + "0" * 400, str(2**63), str(2**31), "1e308", "-1e308", "-1", "0", "1"]
NUMBERS += ["1.5", "true", '"5"']
MARK = "number"
"""Stands for a number in a body."""


def resolved(schema, definitions):
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def least(schema, definitions):
    """A small value of a schema."""
    schema = resolved(schema, definitions)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return least(schema[name][0], definitions)
    match schema.get("type"):
        case "object":
            return {name: least(schema["properties"][name], definitions) for name in schema.get("required", ())}
        case "array":
            return [least(schema["items"], definitions)]
        case kind:
            return {"string": "a", "integer": 1, "number": 1, "boolean": False}.get(kind)


def places(schema, definitions):
    """Where a value of a schema has numbers: the path, and a function that makes the value with `MARK` there."""
    schema = resolved(schema, definitions)
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from places(option, definitions)
    kind = schema.get("type")
    if kind in ("integer", "number") or not {"type", "anyOf", "oneOf", "const", "enum"} & schema.keys():
        yield (), lambda number: number
    elif kind == "array":
        for path, make in places(schema["items"], definitions):
            yield ("0", *path), lambda number, make=make: [make(number)]
    elif kind == "object":
        properties = schema.get("properties", {})
        more = schema.get("additionalProperties", "properties" not in schema)
        named = {"1": more if isinstance(more, dict) else {}} if more else {}
        for name, part in {**properties, **named}.items():
            for path, make in places(part, definitions):
                whole = least({**schema, "type": "object"}, definitions)
                yield (name, *path), lambda number, name=name, make=make, whole=whole: {**whole, name: make(number)}


def bodies(path):
    model, base = ENDPOINTS[path]
    schema = model.model_json_schema(by_alias=True)
    made = {".".join(place): make(MARK) for place, make in places({**schema, "required": []}, schema.get("$defs", {}))}
    company = {name: value for name, value in COMPANY.items() if name in schema["properties"]}
    if "messages" in base and "logprob_token_ids" in company:
        company["logprob_token_ids"] = {"logprobs": True}
    for name, fields in made.items():
        first = name.partition(".")[0]
        beside = {key: value for key, value in company.get(first, {}).items() if key in schema["properties"]}
        yield name, json.dumps({**base, **beside, **fields})


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_number_that_does_not_fit_is_refused_by_the_name_of_its_field(make_fake, path):
    tokenizer = ByteTokenizer()
    tokenizer.model_text = ModelText(chat_template="<think>")
    tokenizer.pooling = PoolingConfig(matryoshka=True, width=16)
    fake = await make_fake(tokenizer=tokenizer, tool_call_parser="hermes")
    answered, wrong = 0, []
    for name, body in bodies(path):
        headers = {"content-type": "application/json"}
        if name.startswith("inflight_continuation"):
            headers["x-inflight-progress"] = "1"
        for number in NUMBERS:
            content = body.replace(f'"{MARK}"', number)
            answer = await answer_of(fake, asyncio.create_task(fake.http.post(path, content=content, headers=headers)))
            if answer is None or answer.status_code == 200:
                answered += 1
                continue
            said = answer.json()["error"]["message"]
            named = name.partition(".")[0] in said or (number in NOT_JSON and "not JSON" in said)
            if answer.status_code != 400 or not named:
                wrong.append((name, number[:40], answer.status_code, said))
    assert not wrong
    assert answered


async def answer_of(fake, call):
    """The response to a call; the engine answers its requests, which it could read, without text. None: the client
    left."""
    seen = set()
    while not call.done():
        await asyncio.sleep(0)
        for request_id in fake.engine.requests.keys() - seen:
            seen.add(request_id)
            if fake.engine.requests[request_id].sampling.prompt_logprobs is not None:
                call.cancel()  # the engine would report them
            fake.engine.report(admitted=[(request_id, 0)], num_running=1)
            fake.engine.report(pooled=[(0, [3.0, 4.0])], finished=[(request_id, FinishReason.STOP)])
    fake.engine.requests.clear()
    return None if call.cancelled() else await call

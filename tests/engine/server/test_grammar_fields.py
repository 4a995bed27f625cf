"""`response_format` and `structured_outputs`: the grammar that the engine gets, and the refusals."""

import asyncio
import json
import time

import pytest

from inflight_contract.errors import ApiError
from inflight_engine.formats.schemas import MAX_BYTES
from inflight_engine.grammars.compiled import GrammarError
from inflight_engine.grammars.sources import Source
from inflight_engine.request import FinishReason
from inflight_engine.server.requests import grammar_checks
from inflight_engine.server.requests.grammar_checks import MAX_WAITING, CheckedGrammars
from tests.engine.server.fake_engine import until

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BODIES = {CHAT: {"messages": [{"role": "user", "content": "hi"}]}, COMPLETION: {"prompt": "hi"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
REFUSED = {"type": "object", "properties": {"a": {"type": "array", "items": {"not": {"type": "null"}}}}}
CHAIN = {
    "$ref": "#/$defs/0",
    "$defs": {
        str(i): {"type": "object", "properties": {"p": {"$ref": f"#/$defs/{i + 1}"}}, "required": ["p"]}
        for i in range(4000)
    }
    | {"4000": {"type": "string"}},
}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
LONG_TAG = {**TAG["structures"][0], "begin": "<f" + "x" * 300}
OPEN_TAG = {**TAG, "structures": [{**TAG["structures"][0], "schema": OPEN}]}


def schema_format(schema, **more):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}}


def structured(**fields):
    return {"structured_outputs": fields}


async def grammar_of(make_fake, path, body):
    """The serialized grammar that the engine gets."""
    fake = await make_fake()
    asking = asyncio.ensure_future(fake.post(path, **BODIES[path], **body))
    await until(lambda: fake.engine.requests or asking.done())
    assert fake.engine.requests, asking.result().text
    (request,) = fake.engine.requests.values()
    asking.cancel()
    return request.sampling.grammar


async def refusal(make_fake, path, body):
    fake = await make_fake()
    answer = await fake.post(path, **BODIES[path], **body)
    assert answer.status_code == 400
    assert not fake.engine.requests
    return answer.json()["error"]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"response_format": {"type": "json_object"}}, '"type":"object"'),
        (schema_format(SCHEMA), '"additionalProperties":false'),
        (schema_format(SCHEMA, strict=True, description="d"), '"additionalProperties":false'),
        ({"response_format": {"type": "structural_tag", **TAG}}, "<f"),
        (structured(json=SCHEMA), '"additionalProperties":false'),
        (structured(json=json.dumps(SCHEMA)), '"additionalProperties":false'),
        (structured(json=SCHEMA, disable_any_whitespace=True), '"whitespace_flexible":false'),
        (structured(json=SCHEMA, whitespace_pattern=" ?"), '"whitespace_pattern":" ?"'),
        (structured(json_object=True), '"type":"object"'),
        (structured(json=OPEN), '"additionalProperties":false'),
        (structured(json=OPEN, disable_additional_properties=True), '"additionalProperties":false'),
        (structured(json=OPEN, disable_additional_properties=False), '"additionalProperties":false'),
        (schema_format(OPEN), '"additionalProperties":false'),
        (structured(structural_tag=json.dumps(OPEN_TAG)), "additionalProperties"),
        (structured(regex="[0-9]{2}/x"), "[0-9]{2}"),
        (structured(choice=["yes", "né 🐈"]), '"yes" | "né 🐈"'),
        (structured(grammar='start: "a"'), 'start: "a"'),
        (structured(grammar='root ::= "a" | "b"'), '"b"'),
        (structured(structural_tag=json.dumps(TAG)), "<f"),
        (structured(structural_tag={"type": "structural_tag", **TAG}), "<f"),
    ],
)
async def test_the_engine_gets_the_grammar(make_fake, path, body, part):
    text = await grammar_of(make_fake, path, body)
    assert part in text.replace(": ", ":").replace('", "', '","') or part in text or json.dumps(part)[1:-1] in text


@pytest.mark.parametrize("body", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": None}])
async def test_without_a_grammar_there_is_none(make_fake, body):
    assert await grammar_of(make_fake, CHAT, body) is None


@pytest.mark.parametrize("strict", [None, False])
async def test_keywords_that_cannot_be_enforced_are_left_out_unless_the_schema_is_strict(make_fake, strict):
    assert '"lenient":true' in await grammar_of(make_fake, CHAT, schema_format(REFUSED, strict=strict))


@pytest.mark.parametrize(
    ("body", "param", "parts"),
    [
        (schema_format(REFUSED, strict=True), "response_format", ["schema.properties.a.items", '"not"']),
        (schema_format({"type": "nothing"}), "response_format", ["Invalid type"]),
        (structured(json=REFUSED), "structured_outputs", ["structured_outputs.json.properties.a.items", '"not"']),
        (
            schema_format({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, strict=True),
            "response_format",
            ["schema: $ref leads back to itself: #/$defs/a"],
        ),
        (structured(json="[1]"), "structured_outputs", ["structured_outputs.json", "object"]),
        (structured(regex="a["), "structured_outputs", ["structured_outputs.regex", "unclosed character class"]),
        (structured(grammar="start: b"), "structured_outputs", ["structured_outputs.grammar", "unknown name"]),
        (structured(grammar="root ::= ("), "structured_outputs", ["structured_outputs.grammar", "GBNF"]),
        (structured(structural_tag=json.dumps(TAG | {"triggers": ["<x"]})), "structured_outputs", ["<f>"]),
        (structured(structural_tag="{}"), "structured_outputs", ["structures"]),
        (structured(structural_tag=json.dumps(TAG | {"triggers": ["<f"] * 1025})), "structured_outputs", ["triggers"]),
        (
            {"response_format": {"type": "structural_tag", **TAG, "structures": [LONG_TAG] * 2000}},
            "response_format",
            [str(MAX_BYTES)],
        ),
        (structured(), "structured_outputs", ["exactly one"]),
        (structured(json_object=False), "structured_outputs", ["exactly one"]),
        (structured(regex="a", choice=["a"]), "structured_outputs", ["exactly one", "has 2"]),
        (structured(regex="a") | {"response_format": {"type": "json_object"}}, "structured_outputs", ["not allowed"]),
        (structured(regex="a" * MAX_BYTES), "structured_outputs", [str(MAX_BYTES)]),
    ],
)
async def test_a_grammar_that_cannot_be_followed_is_refused_with_its_place(make_fake, body, param, parts):
    error = await refusal(make_fake, CHAT, body)
    assert error["param"] == param
    assert all(part in error["message"] for part in parts), error["message"]


@pytest.mark.parametrize(
    "hostile",
    [
        {"json": CHAIN},
        {"grammar": "start: r0\n" + "".join(f'r{i}: r{i + 1} "a"\n' for i in range(20_000)) + 'r20000: "b"\n'},
        {"grammar": "\n" * 100_000 + 'root ::= "a"'},
        {"json": {"type": "string", "allOf": [{"pattern": f"(.|\\n)*[ab].{{{i}}}c"} for i in range(30)]}},
        {
            "grammar": "start: A\nA: "
            + " & ".join(
                f"/(.|\\n)*[{c}](.|\\n){{{i + 3}}}[{c}](.|\\n)*/" for i, c in enumerate("abcdefghijklmnopqrst")
            )
        },
    ],
    ids=["stack of references", "stack of rules", "time to convert", "time to compile", "time to begin"],
)
async def test_a_grammar_that_cannot_be_compiled_in_bounds_ends_neither_process_nor_loop(make_fake, hostile):
    fake = await make_fake()
    refused = asyncio.ensure_future(fake.post(CHAT, **BODIES[CHAT], **structured(**hostile)))
    longest, before = 0.0, time.thread_time()
    while not refused.done():
        await asyncio.sleep(0.01)
        longest, before = max(longest, time.thread_time() - before), time.thread_time()
    answer = await refused
    assert answer.status_code == 400
    assert "too much time or memory" in answer.json()["error"]["message"]
    assert longest < 1.0
    assert "unclosed" in (await refusal(make_fake, CHAT, structured(regex="a[")))["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (schema_format(SCHEMA, strict="yes"), "response_format.json_schema.strict"),
        (structured(choice=[]), "structured_outputs.choice"),
        (structured(unknown=1), "structured_outputs.unknown"),
    ],
)
async def test_a_wrong_field_is_named(make_fake, body, param):
    assert (await refusal(make_fake, CHAT, body))["param"] == param


async def test_earlier_names_of_fields_are_refused_with_the_new_ones(make_fake):
    error = await refusal(make_fake, COMPLETION, {"guided_json": SCHEMA})
    assert "structured_outputs.json" in error["message"]


async def test_a_refusal_of_the_engine_is_the_clients_error(make_fake):
    fake = await make_fake()
    asking = asyncio.ensure_future(fake.post(COMPLETION, prompt="hi", structured_outputs={"regex": "a"}))
    await until(lambda: fake.engine.requests)
    fake.engine.report(finished=[(next(iter(fake.engine.requests)), FinishReason.ERROR, "no such token")])
    answer = await asking
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], "no such token" in answer.text) == ("invalid_grammar", True)


async def test_a_schema_that_is_too_large_for_the_engine_is_refused_before(make_fake):
    properties = {f"p{i}": {"type": "string"} for i in range(500)}
    schema = {"type": "object", "properties": properties, "additionalProperties": True}
    error = await refusal(make_fake, CHAT, schema_format(schema, strict=True))
    assert "too large" in error["message"]


class Checking:
    """A checker that notes what it is asked, and answers when the test says so."""

    def __init__(self):
        self.asked, self.answers = [], asyncio.Semaphore(0)

    async def check(self, source):
        self.asked.append(source.text)
        await self.answers.acquire()
        if source.text.startswith("wrong"):
            raise GrammarError(f"{source.field}: no")
        return source.text


@pytest.fixture
def checking(monkeypatch):
    checking = Checking()
    monkeypatch.setattr(grammar_checks, "CHECKER", checking)
    return checking


async def asked(grammars, text, tenant="a"):
    task = asyncio.ensure_future(grammars.check(Source("f", text), tenant))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_requests_with_the_same_new_grammar_share_its_validation(checking):
    grammars = CheckedGrammars()
    tasks = [await asked(grammars, "x") for _ in range(5)] + [await asked(grammars, "wrong") for _ in range(2)]
    tasks[0].cancel()
    checking.answers.release()
    checking.answers.release()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[1:5] == ["x"] * 4
    assert [each.status for each in results[5:]] == [400, 400]
    assert checking.asked == ["x", "wrong"]
    assert await (await asked(grammars, "x")) == "x"


async def test_tenants_have_their_grammars_validated_in_turns(checking):
    grammars = CheckedGrammars()
    tasks = [await asked(grammars, f"a{i}") for i in range(4)] + [await asked(grammars, f"b{i}", "b") for i in range(2)]
    for _ in tasks:
        checking.answers.release()
    await asyncio.gather(*tasks)
    assert checking.asked == ["a0", "a1", "b0", "a2", "b1", "a3"]


async def test_a_tenant_with_too_many_waiting_grammars_is_sent_away_and_others_are_not(checking):
    grammars = CheckedGrammars()
    tasks = [await asked(grammars, str(i)) for i in range(MAX_WAITING + 1)]
    with pytest.raises(ApiError) as error:
        await (await asked(grammars, "more"))
    assert (error.value.status, error.value.retry_after) == (503, 1.0)
    tasks.append(await asked(grammars, "other", "b"))
    for _ in tasks:
        checking.answers.release()
    assert (await asyncio.gather(*tasks))[-1] == "other"

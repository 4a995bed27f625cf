"""Grammars of tool calls: what follows them is a call, in any format."""

import json
import re

import pytest
from llguidance import LLMatcher, LLTokenizer

from inflight_engine.formats.grammar import calls_grammar, text_or_calls_grammar
from inflight_engine.formats.schemas import MAX_BYTES
from inflight_engine.formats.table import FORMATS
from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.tokens.tokenizer import load_tokenizer
from tests.engine.formats.answers import CASES, SCHEMAS

TOOLS = [
    {"name": "now"},
    {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": SCHEMAS["get_weather"], "required": ["city", "days"]},
    },
]
IDS = ["-".join((each.names[0], "section" if each.section else "calls")) for each in FORMATS]


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("token_of", [lambda _name: None, lambda name: len(name) if name.startswith("<|") else None])
@pytest.mark.parametrize("make", [calls_grammar, text_or_calls_grammar])
def test_grammars_are_valid(make, form, several, token_of):
    text = make(form, TOOLS, token_of, several=several)
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(text)) == ""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    load_tokenizer(resolve("builtin://smollm2")).save(path)
    return LLTokenizer(path.read_text())


WRITTEN = [
    "llama3_json, tagged", "mistral before v11", "mistral", "deepseek_v3", "deepseek_v31", "deepseek_v32", "kimi_k2",
    "deepseek_v4", "glm47", "gemma4", "llama4_pythonic",
]  # fmt: skip
"""Cases whose calls are as a grammar writes them."""


@pytest.mark.parametrize("name", WRITTEN)
def test_answers_of_the_format_follow_its_grammar(vocabulary, name):
    how, text, _ = CASES[name]
    calls = text[min(text.find(opener) for opener in how.format.openers if opener in text) :]
    calls = calls.replace('"type": "function", ', "")
    tools = [TOOLS[0], {**TOOLS[1], "parameters": {**TOOLS[1]["parameters"], "required": ["city"]}}]
    grammar = calls_grammar(how.format, tools, lambda _name: None, several=True)
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar))
    tokens = vocabulary.tokenize_str(calls)
    count = matcher.validate_tokens(tokens)
    assert count == len(tokens), vocabulary.decode_str(tokens[:count])
    matcher.consume_tokens(tokens)
    assert matcher.is_accepting()


@pytest.mark.parametrize("name", WRITTEN)
def test_before_calls_any_text_may_come_and_none_is_needed(vocabulary, name):
    how, text, _ = CASES[name]
    calls = text[min(text.find(opener) for opener in how.format.openers if opener in text) :]
    calls = calls.replace('"type": "function", ', "")
    tools = [TOOLS[0], {**TOOLS[1], "parameters": {**TOOLS[1]["parameters"], "required": ["city"]}}]
    grammar = text_or_calls_grammar(how.format, tools, lambda _name: None, several=True)
    at_start = len(how.format.openers[-1]) == 1
    for before in [""] if at_start else ["", " \n", "Let me see: <too, ", "né {"]:
        assert follows(vocabulary, grammar, before + calls), before
        for written, wrong in (("get_weather", "get_whether"), ("city", "town")):
            if written in calls:
                assert not follows(vocabulary, grammar, before + calls.replace(written, wrong)), wrong
    for plain in ("", "Hello.", "\nHi <b> 7 > 5: né\n"):
        assert follows(vocabulary, grammar, plain)


def test_harmony_calls_answers_or_writes_more_before_these(vocabulary):
    ids = {name: number for number, name in enumerate(SPECIAL, 1)}
    grammar = text_or_calls_grammar(HARMONY_CALLS, TOOLS, ids.get, several=True)
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    answer = "<|channel|>final<|message|>Oslo."
    for text in (call, answer, preamble + call, preamble * 2 + answer, f"{call}<|end|><|start|>assistant{call}"):
        assert follows(vocabulary, grammar, text, ids), text
    for text in ("Oslo.", call.replace("now", "later"), call.replace("{}", '{"a": 1}'), preamble + "Oslo."):
        assert not follows(vocabulary, grammar, text, ids), text


SPECIAL = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>")
HARMONY_CALLS = next(each for each in FORMATS if each.channels)


def follows(vocabulary, grammar, text, ids=None):
    """The text, special tokens by their ids, is of the grammar and may end."""
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = []
    for piece in re.split("|".join(map(re.escape, SPECIAL)).join("()"), text):
        tokens += [ids[piece]] if ids and piece in ids else vocabulary.tokenize_str(piece)
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {"type": "string"}}, "required": 5},
        {"properties": {"a": {"type": "string", "enum": True}}},
        {"properties": {"a": {"type": "string"}}, "required": [{}]},
        {"properties": {"a": {"type": [{}], "$ref": 1}}, "$defs": 1},
        {"properties": {"a": {"type": "string", "enum": [""]}}},
    ],
)
def test_schemas_that_are_none_make_no_error_of_their_own(form, parameters):
    calls_grammar(form, [{"name": "f", "parameters": parameters}], lambda _name: None, several=True)


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_a_schema_is_in_the_grammar_once(form):
    tools = [
        {"name": f"f{i}", "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}} for i in range(9)
    ]
    text = calls_grammar(form, tools, lambda _name: None, several=True)
    assert text.count("%json") <= 1


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
@pytest.mark.parametrize("more", [{"uniqueItems": True}, {"contains": {"type": "string"}}])
def test_keywords_that_cannot_be_enforced_refuse_strict_functions_alone(form, more):
    def is_valid(**tool):
        parameters = {"properties": {"a": {"type": "array", **more}}}
        try:
            tools = [{"name": "f", "parameters": parameters, **tool}]
            text = calls_grammar(form, tools, lambda _name: None, several=True)
        except ValueError:
            return False
        return LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(text)) == ""

    assert is_valid()
    assert is_valid(strict=False)
    assert not is_valid(strict=True)


@pytest.mark.parametrize(
    ("tool", "arguments", "allowed"),
    [
        ({}, '{"a": 1}', False),
        ({"parameters": {}}, '{"a": 1}', False),
        ({}, "{}", True),
        ({"parameters": {"properties": {"a": {"type": "integer"}}}}, "5", False),
        ({"parameters": {"properties": {"a": {"type": "integer"}}}}, '{"a": 5}', True),
    ],
)
def test_arguments_are_an_object_and_none_for_a_function_without_parameters(vocabulary, tool, arguments, allowed):
    text = calls_grammar(CASES["hermes"][0].format, [{"name": "f", **tool}], lambda _name: None, several=False)
    matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(text))
    tokens = vocabulary.tokenize_str('<tool_call>\n{"name": "f", "arguments": ' + arguments + "}\n</tool_call>")
    assert (matcher.validate_tokens(tokens) == len(tokens)) is allowed


@pytest.mark.parametrize(
    "part", [{"$ref": "#/$defs/X"}, {"$ref": "#/$defs/Y"}, {"type": "object", "properties": {"a": {"type": "integer"}}}]
)
def test_arguments_have_only_the_properties_that_their_schema_names(vocabulary, part):
    (form,) = (each for each in FORMATS if "qwen3_coder" in each.names)
    definitions = {"X": {"type": "object", "properties": {"a": {"type": "integer"}}}, "Y": {"$ref": "#/$defs/X"}}
    tool = {"name": "f", "parameters": {"properties": {"p": part}, "required": ["p"], "$defs": definitions}}
    grammar = calls_grammar(form, [tool], lambda _name: None, several=False)
    call = "<tool_call>\n<function=f>\n<parameter=p>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert follows(vocabulary, grammar, call.format('{"a": 1}'))
    assert not follows(vocabulary, grammar, call.format('{"a": 1, "b": 2}'))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=p>\n{}\n</parameter>\n</function>\n</tool_call>"),
        ("llama4_pythonic", '<|python_start|>[f(p="{}")]<|python_end|>'),
    ],
)
@pytest.mark.parametrize("path", ["#/$defs/X", "#/$defs/Y"])
def test_a_parameter_has_the_values_of_the_definition_that_it_refers_to(vocabulary, name, call, path):
    (form,) = (each for each in FORMATS if name in each.names)
    definitions = {"X": {"type": "string", "enum": ["low", "high"]}, "Y": {"$ref": "#/$defs/X"}}
    parameters = {"properties": {"p": {"$ref": path, "title": "t"}}, "required": ["p"], "$defs": definitions}
    grammar = calls_grammar(form, [{"name": "f", "parameters": parameters}], lambda _name: None, several=False)
    assert [follows(vocabulary, grammar, call.format(value)) for value in ("low", "lowest")] == [True, False]


def test_each_call_of_an_answer_has_only_what_its_schema_names():
    (form,) = (each for each in FORMATS if "hermes" in each.names)
    names = [f"p{number}" for number in range(MAX_BYTES // 400)]
    tools = [{"name": f"f{n}", "parameters": {"properties": {key: {} for key in names[n::9]}}} for n in range(9)]
    grammar = calls_grammar(form, tools, lambda _name: None, several=True)
    schemas = re.findall("%json (.*)", grammar)
    assert len(schemas) == 9
    assert all(json.loads(each)["additionalProperties"] is False for each in schemas)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "llama4_pythonic"])
@pytest.mark.parametrize(
    "part",
    [
        lambda n: {"$ref": "#/$defs/object", "title": f"t{n}"},
        lambda n: {"$ref": "#/$defs/object"},
        lambda n: {"$ref": "#/$defs/string"},
    ],
)
def test_a_grammar_that_gets_too_long_is_refused_before_it_takes_memory(name, part):
    """The definitions would be in it once for each parameter."""
    (form,) = (each for each in FORMATS if name in each.names)
    long = [f"v{number}" for number in range(20_000)]
    definitions = {
        "object": {"type": "object", "properties": {key: {} for key in long}},
        "string": {"type": "string", "enum": long},
    }
    parameters = {"properties": {f"p{n}": part(n) for n in range(20_000)}, "$defs": definitions}
    with pytest.raises(ValueError, match=f"more than {MAX_BYTES} characters"):
        calls_grammar(form, [{"name": "f", "parameters": parameters}], lambda _name: None, several=False)


@pytest.mark.parametrize("name", ["qwen3_coder", "llama4_pythonic"])
def test_a_definition_is_not_looked_through_again_for_each_parameter_that_refers_to_it(name):
    class Counted(list):
        times = 0

        def __iter__(self):
            Counted.times += 1
            return super().__iter__()

    (form,) = (each for each in FORMATS if name in each.names)
    definitions = {"A": {"anyOf": Counted([{"type": "string"}] * 9)}}
    parameters = {"properties": {f"p{n}": {"$ref": "#/$defs/A"} for n in range(9)}, "$defs": definitions}
    calls_grammar(form, [{"name": "f", "parameters": parameters}], lambda _name: None, several=True)
    assert Counted.times <= 3

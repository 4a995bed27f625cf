"""Tool calls, reasoning and content of answers, however their text was cut into pieces."""

import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_engine.formats.table import FORMATS, REASONINGS
from inflight_engine.formats.values import parameters_of
from tests.engine.formats.answers import CASES, HARMONY, SCHEMAS, THINK, Parsing, form, parse, parsing

case = pytest.mark.parametrize(("how", "text", "expected"), CASES.values(), ids=CASES)


@case
def test_what_clients_get_of_an_answer(how, text, expected):
    assert parse(how, text) == expected


@case
def test_every_cut_gives_the_same(how, text, expected):
    for cut in range(len(text) + 1):
        assert parse(how, text, [cut]) == expected
    assert parse(how, text, range(1, len(text))) == expected


@case
def test_every_beginning_is_parsed_whole_and_in_characters_alike(how, text, expected):
    for end in range(0, len(text), 7):
        assert parse(how, text[:end]) == parse(how, text[:end], range(1, end))


def test_each_format_has_a_case():
    with_calls = {how.format for how, _, (_, _, calls) in CASES.values() if calls}
    assert with_calls == set(FORMATS)
    assert {how.reasoning for how, _, (_, reasoning, _) in CASES.values() if reasoning} == set(REASONINGS)


@given(st.data())
def test_broken_answers_are_no_errors_and_the_same_in_any_pieces(data):
    how, text, _ = data.draw(st.sampled_from([*CASES.values()]))
    other = data.draw(st.sampled_from([*CASES.values()]))[1]
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 12))
    broken = (
        text[:at] + data.draw(st.sampled_from(["", "{", '"', "\\", "<", "é", other[:length]])) + text[at + length :]
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(broken)), max_size=6)))
    assert parse(how, broken, cuts) == parse(how, broken)


@given(
    st.sampled_from([(form, reasoning) for form in (None, *FORMATS) for reasoning in (None, *REASONINGS)]), st.text()
)
def test_text_without_any_mark_is_content_alone(kinds, text):
    form, reasoning = kinds
    if reasoning is not None and reasoning.implied:
        return
    how = Parsing(form, reasoning, schemas=SCHEMAS)
    assert parse(how, "x" + text.replace("[", "").replace("<", "")) == (
        "x" + text.replace("[", "").replace("<", ""),
        "",
        [],
    )


@pytest.mark.parametrize("name", ["hermes", "thinking", "openai"])
def test_a_long_answer_of_nothing_but_beginnings_takes_no_more_time_at_once_than_in_pieces(name):
    """A client makes a model write so, by a grammar or by the bias of a token."""
    how, text = {
        "hermes": (parsing("hermes"), '<tool_call>{"x":"' + "<tool_call>" * 32_000),
        "thinking": (parsing("hermes", reasoning=THINK, opened=True), "<tool_call>" * 32_000),
        "openai": (parsing("openai", reasoning=HARMONY), "<|channel|><|message|>" * 16_000),
    }[name]
    begun = process_time()
    parse(how, text)
    assert process_time() - begun < 1.5


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"$ref": "#/$defs/Place"}, '{"x": 1}'),
        ({"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, '{"x": 1}'),
        ({"allOf": [{"$ref": "#/$defs/Place"}]}, '{"x": 1}'),
        ({"$ref": "#/$defs/Level"}, '"{\\"x\\": 1}"'),
        ({"$ref": "#/$defs/Loop"}, '"{\\"x\\": 1}"'),
        ({"$ref": "#/$defs/None"}, '"{\\"x\\": 1}"'),
        ({"$ref": 1}, '"{\\"x\\": 1}"'),
    ],
)
@pytest.mark.parametrize("name", ["qwen3_coder", "glm47"])
def test_values_between_tags_have_the_types_of_the_definitions_that_schemas_refer_to(name, schema, written):
    definitions = {
        "Place": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "Level": {"enum": ["low", "high"]},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Loop"}]},
    }
    text = {
        "qwen3_coder": '<tool_call><function=go><parameter=to>{"x": 1}</parameter></function></tool_call>',
        "glm47": '<tool_call>go<arg_key>to</arg_key><arg_value>{"x": 1}</arg_value></tool_call>',
    }[name]
    go = parameters_of({"properties": {"to": schema}, "$defs": definitions})
    assert parse(Parsing(form(name), schemas={"go": go}), text) == ("", "", [("go", None, f'{{"to": {written}}}')])


def test_definitions_are_not_copied_for_each_parameter_that_refers_to_them():
    definitions = {"Long": {"type": "object", "properties": {}}}
    found = parameters_of({"properties": {"a": {"$ref": "#/$defs/Long"}, "b": {}}, "$defs": definitions})
    assert found == {"a": {"$ref": "#/$defs/Long", "$defs": definitions}, "b": {"$defs": definitions}}


def test_arguments_that_are_an_empty_string_are_none():
    text = '<tool_call>{"name": "now", "arguments": ""}</tool_call>'
    assert parse(CASES["hermes"][0], text) == ("", "", [("now", None, "{}")])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans(), st.sampled_from([None, 2]))
def test_arguments_in_json_stay_as_they_are_written(arguments, escaped, indent):
    written = json.dumps(arguments, ensure_ascii=escaped, indent=indent)
    text = f'<tool_call>{{"name": "now", "arguments": {written}}}</tool_call>'
    assert parse(CASES["hermes"][0], text) == ("", "", [("now", None, written)])


@given(st.dictionaries(st.from_regex(r"[a-z]\w*", fullmatch=True), JSON, max_size=4))
def test_arguments_in_python_become_json(arguments):
    text = "[now(" + ", ".join(f"{name}={value!r}" for name, value in arguments.items()) + ")]"
    content, _, [(_, _, written)] = parse(CASES["pythonic"][0], text)
    assert (content, json.loads(written)) == ("", arguments)


def test_nesting_has_a_bound():
    text = '<tool_call>{"name": "now", "arguments": ' + '{"a": ' * 5000 + "1" + "}" * 5000 + "}</tool_call>"
    content, _, [(name, _, _)] = parse(CASES["hermes"][0], text)
    assert name == "now"
    assert content

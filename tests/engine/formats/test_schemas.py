"""JSON schemas as they are followed: nothing that they do not name, little white space, and no refusal more."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from inflight_engine.formats.schemas import MAX_BYTES, circle, for_llguidance

A = {"type": "object", "properties": {"a": {"type": "integer"}}}
B = {"type": "object", "properties": {"b": {"type": "integer"}}}
NAMED = {"k": {"const": "x"}, "n": {"type": "null"}}
BYTES = LLTokenizer("byte", slices=[])


def follows(schema, value, options=None):
    """Tell whether this is a text of the schema as the engine follows it."""
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(for_llguidance(schema, options or {})))
    assert LLMatcher.validate_grammar(grammar) == ""
    matcher = LLMatcher(BYTES, grammar)
    text = (value if isinstance(value, str) else json.dumps(value)).encode()
    return (
        matcher.validate_tokens(list(text)) == len(text)
        and matcher.consume_tokens(list(text))
        and (matcher.is_accepting())
    )


def within(part):
    """Schemas of which a value, by `value_within`, follows this part."""
    return {
        "itself": part,
        "property": {"type": "object", "properties": {"p": part}, "required": ["p"]},
        "items": {"type": "array", "items": part},
        "prefixItems": {"type": "array", "prefixItems": [part]},
        "items of draft 7": {"type": "array", "items": [part]},
        "additional": {"type": "object", "additionalProperties": part},
        "pattern": {"type": "object", "patternProperties": {"^p$": part}},
        "anyOf": {"anyOf": [{"type": "null"}, part]},
        "oneOf": {"oneOf": [{"type": "null"}, part]},
        "single allOf": {"allOf": [part], "description": "d"},
        "reference": {"$ref": "#/$defs/x~1y", "$defs": {"x/y": part}},
        "reference to itself": {"$ref": "#/definitions/x", "definitions": {"x": {"anyOf": [part, {"type": "null"}]}}},
    }


def value_within(place, value):
    lists, objects = ("items", "prefixItems", "items of draft 7"), ("property", "additional", "pattern")
    return {each: [value] for each in lists} | {each: {"p": value} for each in objects}


@pytest.mark.parametrize("place", within({}))
def test_properties_that_a_schema_does_not_name_are_not_written(place):
    schema = within(A)[place]
    for value, named in (({"a": 1}, True), ({}, True), ({"b": 1}, False), ({"a": 1, "b": 2}, False)):
        value = value_within(place, value).get(place, value)
        assert follows(schema, value) == named, value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({**A, "additionalProperties": True}, {"x": 1}),
        ({**A, "additionalProperties": {"type": "null"}}, {"x": None}),
        ({"type": "object"}, {"x": 1}),
        ({"type": "object", "required": ["x"]}, {"x": 1}),
        ({**A, "required": ["x"]}, {"x": 1}),
        ({**A, "minProperties": 1, "required": ["a"]}, {"a": 1, "x": 1}),
        ({"allOf": [A, B]}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#/$defs/A"}, B], "$defs": {"A": A}}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#/$defs/D"}, B], "$defs": {"A": A, "D": {"$ref": "#/$defs/A"}}}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#/allOf/1/properties/p"}, {"properties": {"p": A}}]}, {"a": 1, "x": 1}),
        ({**B, "$ref": "#/$defs/A", "$defs": {"A": A}}, {"b": 1, "a": 2}),
        ({**A, "anyOf": [B, {"type": "object", "properties": {"c": {"type": "null"}}}]}, {"a": 1, "b": 2}),
        ({"properties": {"p": A}, "allOf": [{"properties": {"p": B}}], "type": "object"}, {"p": {"a": 1, "b": 2}}),
        ({**A, "enum": [{"a": 1, "x": 2}]}, '{"a":1,"x":2}'),
        ({"allOf": [{"$ref": "#/$defs/A%20%24"}, B], "$defs": {"A $": A}}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#A"}, B], "$defs": {"A": {**A, "$anchor": "A"}}}, {"a": 1, "b": 2}),
        ({"$id": "http://x/s", "allOf": [{"$ref": "s#/$defs/A"}, B], "$defs": {"A": A}}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "urn:a"}, B], "$defs": {"A": {**A, "$id": "urn:a"}}}, {"a": 1, "b": 2}),
        ({"$ref": "#/x/y", "x": {"y": {"allOf": [{"$ref": "#/$defs/A"}, B]}}, "$defs": {"A": A}}, {"a": 1, "b": 2}),
        ({**A, "dependentRequired": {"a": ["x"]}, "x-guidance": {"lenient": True}}, {"a": 1, "x": 2}),
        ({**A, "dependencies": {"a": ["x"]}, "x-guidance": {"lenient": True}}, {"a": 1, "x": 2}),
    ],
)
def test_what_another_part_of_a_schema_may_ask_for_is_written(schema, value):
    assert follows(schema, value)


def test_a_reference_to_a_schema_of_true_closes_the_others_as_before():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/any"}}, "$defs": {"any": True}}
    assert [follows(schema, value) for value in ({"a": [1]}, {"a": 1, "b": 2})] == [True, False]


def test_references_into_a_long_list_are_followed():
    """In time that grows with the schema: going through the list for each would take minutes."""
    many = MAX_BYTES // 32
    schema = {"anyOf": [*[{"$ref": f"#/anyOf/{many}"}] * many, A], "minProperties": 0}
    assert for_llguidance(schema, {})["anyOf"][many] == A  # it is combined with minProperties, and stays open


def test_a_definition_stays_open_only_where_it_is_combined():
    schema = {
        "type": "object",
        "properties": {"both": {"allOf": [{"$ref": "#/$defs/A"}, B]}, "one": {"$ref": "#/$defs/C"}},
        "$defs": {"A": A, "C": {**B}},
    }
    assert follows(schema, {"both": {"a": 1, "b": 1, "x": 1}, "one": {"b": 1}})
    assert not follows(schema, {"one": {"b": 1, "x": 1}})


def test_a_definition_stays_open_where_lists_of_draft_7_combine_it():
    lists = [{"type": "array", "items": [{"$ref": "#/definitions/A"}]}, {"type": "array", "items": [B]}]
    assert follows({"allOf": lists, "definitions": {"A": A}}, [{"a": 1, "b": 1}])


def test_schemas_stay_open_where_identifiers_move_references():
    part = {"$id": "https://example.org/part", "$ref": "#/$defs/p", "$defs": {"p": A}}
    schema = {"allOf": [{"$ref": "#/$defs/part"}, B], "$defs": {"part": part, "p": {"type": "null"}}}
    assert follows(schema, {"a": 1, "b": 1})
    assert not follows({"$id": "https://example.org/root", **A}, {"b": 1})


def test_alternatives_of_which_one_holds_are_closed_where_a_property_tells_them_apart():
    x = {"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"]}
    y = {"type": "object", "properties": {"k": {"const": "y"}}, "required": ["k"]}
    schema = {"oneOf": [x, {"type": "null"}, y]}
    assert follows(schema, {"k": "x"})
    assert not follows(schema, {"k": "x", "z": 1})


def test_alternatives_of_which_one_holds_are_refused_as_without_closing():
    """`{"a": 1}` follows both, and closed they would seem to differ."""
    schema = {"oneOf": [{**A, "required": ["a"]}, B]}
    made = for_llguidance(schema, {})
    assert "oneOf" in LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(made)))


def test_items_that_a_schema_does_not_name_are_not_written():
    schema = {"type": "array", "prefixItems": [{"type": "integer"}]}
    assert [follows(schema, value) for value in ([1], [1, 2])] == [True, False]
    assert follows({**schema, "minItems": 2}, [1, 2])
    assert follows({**schema, "items": {"type": "null"}}, [1, None])


@pytest.mark.parametrize("indent", [None, 0, 2, 4, "\t"])
@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_white_space_is_what_serializers_write(indent, separators):
    value = {"a": [1, {"b": {"c": []}}], "d": {}, "e": "x  \n y"}
    assert follows({"type": "object"}, json.dumps(value, indent=indent, separators=separators))


@pytest.mark.parametrize("space", ["\n\n", "  ", "\n" + " " * 65, "\n" + "\t" * 17, "\n \t", "\n \n", "\r\r\n"])
def test_no_more_white_space_is_allowed(space):
    assert not follows({"type": "object"}, '{"a":' + space + "1}")


@pytest.mark.parametrize(
    ("options", "given", "text", "expected"),
    [
        ({"whitespace_flexible": False}, {}, '{"a": 1}', False),
        ({"whitespace_flexible": True}, {}, '{"a":\n\n1}', False),
        ({"whitespace_pattern": "x"}, {}, '{"a":x1}', True),
        ({}, {"whitespace_pattern": "[ ]{9}"}, '{"a":         1}', True),
        ({}, {"whitespace_flexible": False}, '{"a": 1}', False),
    ],
)
def test_a_request_can_ask_for_other_white_space(options, given, text, expected):
    assert follows({"type": "object", "x-guidance": given}, text, options=options) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 1},
        {"properties": {"a": 1}},
        {"$ref": 1},
        {"$ref": "#/x/0"},
        {"$ref": "#/allOf/" + "1" * 5000, "allOf": []},
        {"$ref": "#/allOf/1", "allOf": []},
        {"$ref": "#/allOf/x", "allOf": []},
        {"$ref": "#/title/x", "title": "x"},
        {"oneOf": 1},
        {"oneOf": [1, {"required": [1], "properties": []}]},
        {"prefixItems": [], "minItems": "x"},
        {"prefixItems": 1},
        {"allOf": [{"$ref": "#"}, {"$ref": "#/allOf"}]},
        {"x-guidance": 1},
        {"type": "object", "properties": {}, "required": [{}]},
    ],
)
def test_a_schema_that_is_none_is_left_for_the_refusal(schema):
    json.dumps(for_llguidance(schema, {}))


@pytest.mark.parametrize("size", [MAX_BYTES // 20, MAX_BYTES])
def test_a_schema_that_is_too_long_is_not_looked_through(size):
    schema = {"anyOf": [A] * (size // 10)}
    assert ("additionalProperties" in json.dumps(for_llguidance(schema, {}))) == (size < MAX_BYTES)


TO_A, TO_B = "#/$defs/a", "#/$defs/b"


@pytest.mark.parametrize(
    ("schema", "references"),
    [
        ({"$ref": "#"}, ["#"]),
        ({"$ref": TO_A, "$defs": {"a": {"$ref": TO_B}, "b": {"$ref": TO_A}}}, [TO_B, TO_A]),
        ({"properties": {"x": {"$ref": TO_A}}, "$defs": {"a": {"allOf": [{"minimum": 1}, {"$ref": TO_A}]}}}, [TO_A]),
        ({"$defs": {"a": {"$ref": TO_B}, "b": {"type": "null"}}, "anyOf": [{"$ref": TO_A}, {"$ref": TO_B}]}, []),
        ({"$ref": TO_A, "$defs": {"a": {"properties": {"next": {"$ref": TO_A}}}}}, []),
        ({"$ref": TO_A, "$defs": {"a": {"anyOf": [{"$ref": TO_A}, {"type": "null"}]}}}, []),
        ({"$ref": "#/$defs/none"}, []),
        ({"$ref": "#/$defs/c0", "$defs": {f"c{i}": {"$ref": f"#/$defs/c{i + 1}"} for i in range(9000)}}, []),
    ],
    ids=["itself", "two", "with others", "none", "below a property", "a choice", "no target", "many"],
)
def test_references_that_lead_back_to_themselves_are_found(schema, references):
    assert circle(schema) == references

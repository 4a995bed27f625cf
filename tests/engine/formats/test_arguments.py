"""Arguments of tool calls in notations of their own: whatever a grammar lets through follows the schema."""

import json
import random
import re

import pytest
from llguidance import LLMatcher, LLTokenizer

from inflight_engine.formats.grammar import calls_grammar
from inflight_engine.formats.kinds import UnenforceableError
from inflight_engine.formats.parser import Parsing
from inflight_engine.formats.table import FORMATS
from tests.engine.formats.answers import parse

BYTES = LLTokenizer("byte", slices=[])
WALKED = [each for each in FORMATS if not each.channels]
NAMES = ["-".join((each.names[0], "section" if each.section else "calls")) for each in WALKED]
OWN = ["qwen3_coder", "glm47", "deepseek_v32", "deepseek_v4", "gemma4", "pythonic", "llama4_pythonic"]


def named(name):
    return next(each for each in FORMATS if name in each.names)


def written(form, schema, rng, definitions=None):
    """The argument `p` of a call that takes any bytes the grammar allows, as the parser reads it."""
    parameters = {"type": "object", "properties": {"p": schema}, "required": ["p"], "$defs": definitions or {}}
    tool = {"name": "f", "parameters": parameters, "strict": True}
    grammar = LLMatcher.grammar_from_lark(calls_grammar(form, [tool], lambda _name: None, several=False))
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    text = bytearray()
    while not matcher.is_stopped() and len(text) < 4096:
        mask = int.from_bytes(matcher.compute_bitmask()[:32], "little")
        allowed = [byte for byte in range(256) if mask >> byte & 1]
        if not allowed:
            break
        # Mostly plain letters and signs: of all characters nearly none are ASCII.
        plain = [byte for byte in allowed if byte < 128] or allowed
        text.append(rng.choice(plain if rng.random() < 0.9 else allowed))
        assert matcher.consume_token(text[-1])
    _, _, calls = parse(Parsing(form, schemas={"f": {"p": {"$defs": definitions or {}, **schema}}}), text.decode())
    assert len(calls) == 1, text
    return json.loads(calls[0][2])["p"], text


def is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value, pattern):
    return isinstance(value, str) and re.fullmatch(pattern, value, flags=re.DOTALL) is not None


NODE = {"type": "object", "properties": {"v": {"enum": [1, "x"]}, "next": {"$ref": "#/$defs/N"}}, "required": ["v"]}


def is_node(value):
    return value.keys() <= {"v", "next"} and value["v"] in (1, "x") and ("next" not in value or is_node(value["next"]))


@pytest.mark.parametrize("form", WALKED, ids=NAMES)
@pytest.mark.parametrize(
    ("schema", "follows"),
    [
        ({"type": "string", "maxLength": 2}, lambda v: is_text(v, ".{0,2}")),
        ({"type": "string", "minLength": 2, "maxLength": 3}, lambda v: is_text(v, ".{2,3}")),
        ({"type": "string", "pattern": "^[0-9]{1,4}$"}, lambda v: is_text(v, "[0-9]{1,4}")),
        ({"type": "string", "pattern": "a/b|^c$", "maxLength": 4}, lambda v: is_text(v, ".?(a/b).?|c")),
        ({"type": "string", "pattern": "[|)]x", "maxLength": 4}, lambda v: is_text(v, ".*[|)]x.*")),
        ({"type": "string", "format": "date"}, lambda v: is_text(v, "[0-9]{4}-[01][0-9]-[0-3][0-9]")),
        ({"type": "string", "enum": ["é\n", '"a"', "😀"]}, lambda v: v in ("é\n", '"a"', "😀")),
        ({"pattern": "^[ab]{2}$"}, lambda v: not isinstance(v, str) or is_text(v, "[ab]{2}")),
        ({"const": "one", "description": "d"}, lambda v: v == "one"),
        ({"type": "integer", "minimum": 3, "maximum": 9}, lambda v: is_integer(v) and 3 <= v <= 9),
        ({"type": "number", "minimum": 0.25, "maximum": 0.5}, lambda v: 0.25 <= v <= 0.5),
        ({"type": "integer", "enum": [4, 25]}, lambda v: is_integer(v) and v in (4, 25)),
        ({"type": "boolean"}, lambda v: v in (True, False)),
        (
            {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
            lambda v: v is None or is_text(v, ".{0,3}"),
        ),
        (
            {"type": ["string", "integer"], "maxLength": 3, "maximum": 9, "minimum": 0},
            lambda v: v in range(10) if is_integer(v) else is_text(v, ".{0,3}"),
        ),
        ({"enum": ["a", 1, None, True, [1, None]]}, lambda v: v in ("a", 1, None, True, [1, None])),
        (
            {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
            lambda v: len(v) in (1, 2) and all(isinstance(each, bool) for each in v),
        ),
        ({"type": "array", "items": {"type": "string", "maxLength": 1}, "maxItems": 2}, lambda v: len(v) <= 2),
        ({"$ref": "#/$defs/N", "description": "d"}, is_node),
        (
            {"type": "object", "additionalProperties": {"type": "integer", "maximum": 3, "minimum": 1}},
            lambda v: all(is_integer(each) and 1 <= each <= 3 for each in v.values()),
        ),
    ],
    ids=lambda each: json.dumps(each)[:60] if isinstance(each, dict) else "",
)
def test_values_of_any_text_that_a_grammar_allows_follow_the_schema(form, schema, follows):
    rng = random.Random(json.dumps(schema))
    for _ in range(4):
        value, text = written(form, schema, rng, {"N": NODE})
        assert follows(value), (value, text)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("part", "keyword"),
    [
        ({"anyOf": [{"type": "string", "format": "hostname"}]}, "format"),
        ({"type": "string", "not": {"const": "x"}}, "not"),
    ],
)
def test_keywords_that_a_notation_cannot_write_refuse_strict_functions_by_their_place(name, part, keyword):
    def make(**tool):
        parameters = {"properties": {"a": part}}
        return calls_grammar(
            named(name), [{"name": "f", "parameters": parameters, **tool}], lambda _name: None, several=False
        )

    make()
    if name in ("pythonic", "llama4_pythonic") and "anyOf" in part:
        return  # a JSON string, which llguidance knows the format of
    with pytest.raises(UnenforceableError, match=f"^{keyword} cannot be enforced") as refused:
        make(strict=True)
    assert (refused.value.name, refused.value.place) == ("f", ".properties.a")


@pytest.mark.parametrize("name", ["gemma4", "pythonic"])
def test_lists_of_draft_7_with_a_schema_for_each_place_refuse_strict_functions(name):
    tool = {"name": "f", "parameters": {"properties": {"a": {"type": "array", "items": [{"type": "integer"}]}}}}
    calls_grammar(named(name), [tool], lambda _name: None, several=False)
    with pytest.raises(UnenforceableError, match=r"^items cannot be enforced"):
        calls_grammar(named(name), [{**tool, "strict": True}], lambda _name: None, several=False)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("part", [{"enum": []}, {"type": "string", "enum": [1]}, {"anyOf": []}])
def test_parameters_without_a_value_are_refused(name, part):
    tool = {"name": "f", "parameters": {"properties": {"a": part}, "required": ["a"]}}
    with pytest.raises(UnenforceableError, match=r"^a schema that no value follows") as refused:
        calls_grammar(named(name), [tool], lambda _name: None, several=False)
    assert refused.value.place == ".properties.a"


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("more", [{"required": ["b"]}, {"anyOf": [{"required": ["a"]}]}, {"minProperties": 1}])
def test_keywords_of_all_parameters_that_cannot_be_written_refuse_strict_functions(name, more):
    tool = {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}, **more}}
    calls_grammar(named(name), [tool], lambda _name: None, several=False)
    with pytest.raises(UnenforceableError, match=f"^{next(iter(more))}"):
        calls_grammar(named(name), [{**tool, "strict": True}], lambda _name: None, several=False)


def deep(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


DOUBLED = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}", "minLength": 1}] * 2} for n in range(60)}
NESTED = {"N": {"properties": {each: {"$ref": "#/$defs/N", "type": "object"} for each in "ab"}, "type": "object"}}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("schema", "definitions"),
    [
        (deep(300), {}),
        ({"$ref": "#/$defs/D0"}, {**DOUBLED, "D60": {"type": "string"}}),
        ({"$ref": "#/$defs/N"}, NESTED),
        ({"$ref": "#/$defs/S"}, {"S": {"$ref": "#/$defs/S"}}),
    ],
    ids=["deep", "doubled", "nested", "circle"],
)
def test_schemas_that_repeat_themselves_end(name, schema, definitions):
    tool = {"name": "f", "parameters": {"properties": {"a": schema}, "$defs": definitions}}
    try:
        calls_grammar(named(name), [tool], lambda _name: None, several=False)
    except ValueError as error:
        assert "the grammar has more than" in str(error)  # noqa: PT017 - most of them end without one

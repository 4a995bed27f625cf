"""No grammar makes llguidance find a long text at once, and those of clients that write none keep what is forced."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from inflight_engine.formats import forced_runs
from inflight_engine.formats.forced_runs import MAX_FORCED
from inflight_engine.formats.grammar import longest_run
from inflight_engine.grammars import sources
from inflight_engine.grammars.compiled import LIMITS

BYTES = LLTokenizer("byte", slices=[])
TIGHT = {"whitespace_flexible": False}
ONES = {"type": "array", "items": {"const": 1}, "minItems": 3}
NAMED = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
DOUBLED = {
    "$defs": {
        **{
            f"a{i}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/a{i + 1}"} for name in "pq"}}
            | {"required": ["p", "q"]}
            for i in range(6)
        },
        "a6": {"const": "k" * 1000},
    },
    "$ref": "#/$defs/a0",
}


def forced(source, begin=b""):
    """The number of characters that the grammar leaves no choice of behind `begin`."""
    matcher = LLMatcher(BYTES, sources.check(source), log_level=0, limits=LIMITS)
    for each in begin:
        assert matcher.consume_token(each), matcher.get_error()
    return len(matcher.compute_ff_tokens())


LONG = {"enum": ["x" * 15_000]}


def moved(identifier):
    """A schema with a reference to another definition than that of its root."""
    part = {"type": "object", "properties": {"a": {"$ref": "#/$defs/p"}}, "required": ["a"], "$defs": {"p": LONG}}
    part[identifier] = "https://example.org/part"
    return {"allOf": [{"$ref": "#/$defs/part"}], "$defs": {"part": part, "p": {"type": "null"}}}


HOSTILE = {
    "a text in a schema": (sources.of_schema("f", {"const": "x" * 100_000}), b'"'),
    "parts that contain others twice": (sources.of_schema("f", DOUBLED, TIGHT), b"{"),
    "items of draft 7": (sources.of_schema("f", {"type": "array", "items": [LONG], "minItems": 1}, TIGHT), b'["'),
    "a reference that an identifier moves": (sources.of_schema("f", moved("$id")), b'{"a":"x'),
    "a reference that an identifier of draft 4 moves": (
        sources.of_schema("f", {"$schema": "http://json-schema.org/draft-04/schema#", **moved("id")}),
        b'{"a":"x',
    ),
    "many equal items": (
        sources.of_schema("f", {"type": "array", "items": {"const": "z" * 100}, "minItems": 1000}, TIGHT),
        b"[",
    ),
    "white space that is none": (
        sources.of_schema("f", {"x-guidance": {"whitespace_pattern": "", "whitespace_flexible": True}, **DOUBLED}),
        b"{",
    ),
    "a regular expression": (sources.of_regex("f", "(ab{100}){100}"), b"ab"),
    "counts with white space": (sources.of_regex("f", "(ab{ 100 }){ 100}"), b"ab"),
    "separators of items": (
        sources.of_schema("f", {**ONES, "x-guidance": {"item_separator": "x{9000}", **TIGHT}}),
        b"[1",
    ),
    "separators behind names": (
        sources.of_schema("f", {**NAMED, "x-guidance": {"key_separator": "k{9000}", **TIGHT}}),
        b'{"a"',
    ),
    "a choice": (sources.of_choice("f", ["a" * 20_000, "b"]), b"a"),
    "rules": (sources.of_grammar("f", f'start: "x" a{{1000}} | "z"\na: "{"y" * 1000}"\n'), b"x"),
    "a tag": (
        sources.of_tags(
            "f", [sources.Tag("<a>" + "b" * 20_000, {"type": "null"}, "</a>")], ["<a>"], lambda text: False
        ),
        b"<a>",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_run_is_longer_than_is_found_within_some_milliseconds(name):
    assert forced(*HOSTILE[name]) <= MAX_FORCED


@pytest.mark.parametrize("name", HOSTILE)
def test_without_the_bound_each_would_be_longer(name):
    source, begin = HOSTILE[name]
    assert forced(source._replace(short_runs=True), begin) > MAX_FORCED


@pytest.mark.parametrize(
    ("source", "begin", "least"),
    [
        (sources.of_schema("f", {"type": "object", "properties": {"name": {}}, "required": ["name"]}), b'{"', 5),
        (sources.of_regex("f", r"abcdef-\d{4}"), b"", 7),
        (sources.of_choice("f", ["alpha beta", "alpha gamma"]), b"", 6),
    ],
)
def test_what_is_short_is_still_found(source, begin, least):
    assert forced(source, begin) >= least


def test_a_grammar_of_any_kind_can_follow_a_header():
    for source in (sources.of_grammar("f", 'start: "a"'), sources.of_choice("f", ["a"]), sources.of_regex("f", "a")):
        text = sources.behind('"head:"', sources.check(source))
        matcher = LLMatcher(BYTES, text, log_level=0)
        assert all(matcher.consume_token(each) for each in b"head:a")
        assert matcher.is_accepting()


WORDS = st.text("abc", max_size=5)
SCHEMAS = st.recursive(
    st.builds(lambda text: {"const": text}, WORDS)
    | st.builds(lambda count: {"type": "string", "pattern": f"^x{{{count}}}$"}, st.integers(1, 30))
    | st.just({"$ref": "#/$defs/d"}),
    lambda inner: (
        st.builds(
            lambda named: {
                "type": "object",
                "properties": named,
                "required": list(named),
                "additionalProperties": False,
            },
            st.dictionaries(WORDS, inner, min_size=1, max_size=3),
        )
        | st.builds(
            lambda item, count: {"type": "array", "items": item, "minItems": count, "maxItems": count},
            inner,
            st.integers(1, 4),
        )
    ),
    max_leaves=6,
)


@given(SCHEMAS, st.builds(lambda text: {"const": text}, WORDS), st.sampled_from([TIGHT, {}]))
@settings(max_examples=60, deadline=None)
def test_no_schema_forces_more_than_its_bound(schema, defined, options):
    source = sources.of_schema("f", {**schema, "$defs": {"d": defined}}, options)
    bound = forced_runs.of_schema(json.loads(source.text)["grammars"][0]["json_schema"])
    matcher = LLMatcher(BYTES, source.text, log_level=0, limits=LIMITS)
    while not matcher.is_stopped():
        run = matcher.compute_ff_tokens()
        assert len(run) <= bound
        if run:
            assert matcher.consume_tokens(run)
            continue
        allowed = int.from_bytes(matcher.compute_bitmask()[:32], "little")
        if not allowed:
            break
        assert matcher.consume_token(allowed.bit_length() - 1)


@pytest.mark.parametrize("place", [{}, {"properties": {"a": {"x-guidance": {}}}}])
def test_a_tool_with_white_space_of_its_own_has_no_bound(place):
    tool = {"name": "f", "parameters": {**NAMED, **place}}
    assert (longest_run(tool) <= MAX_FORCED) == (not place)


def test_depth_is_no_error():
    schema = {"const": "a"}
    for _ in range(3000):
        schema = {"items": schema}
    assert forced_runs.of_schema(schema) == forced_runs.UNKNOWN
    assert forced_runs.of_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}}) == forced_runs.UNKNOWN
    assert forced_runs.of_regex("a{" + "9" * 10_000 + "}") == forced_runs.UNKNOWN


def test_many_counts_are_not_multiplied_to_the_end():
    assert forced_runs.of_regex("a{999999999}" * 500_000) == forced_runs.UNKNOWN  # five million digits

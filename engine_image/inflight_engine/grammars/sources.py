"""Grammars as clients write them, and their validation without a model's vocabulary."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from llguidance import LLMatcher, LLTokenizer, StructTag, grammar_from

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # a type of the stubs alone

from inflight_engine.formats import forced_runs, schemas
from inflight_engine.formats.forced_runs import MAX_FORCED
from inflight_engine.formats.schemas import MAX_BYTES
from inflight_engine.grammars.compiled import LIMITS, GrammarError, reason

_PROBING_SECONDS = 0.5
"""CPU time to find the part of a schema that is refused."""

_TRIED_BYTES = 8
"""At the beginning of a text; of JSON the largest that are allowed are `{` and `"`, before white space."""


class Source(NamedTuple):
    """A grammar of a request.

    Attributes:
        field: where the body has it.
        text: serialized, for `Grammar`.
        schema: the JSON schema that it is made of; None: it is of another kind.
        written: the text is not serialized, but in llguidance's dialect of Lark, or in GBNF.
        short_runs: it is known to leave no choice of at most `MAX_FORCED` characters in a row.
        parts: JSON schemas of parts of it, for llguidance, by their places in the field: names of rules, which its
            messages have, say nothing to clients.
    """

    field: str
    text: str
    schema: Mapping[str, Any] | None = None
    written: bool = False
    short_runs: bool = False
    parts: Mapping[str, Mapping[str, Any]] = {}


class Tag(NamedTuple):
    """A part of free text that follows a schema, from `begin` to `end`."""

    begin: str
    schema: Mapping[str, Any]
    end: str


def of_schema(field: str, schema: Mapping[str, Any], options: JsonCompileOptions | None = None) -> Source:
    """Make a grammar of a JSON schema. Arguments as of `schemas.for_llguidance`."""
    _check_length(len(msgspec.json.encode(schema)))
    made = schemas.for_llguidance(schema, options or {})
    text = LLMatcher.grammar_from_json_schema(json.dumps(made, separators=(",", ":")))
    return Source(field, text, schema, short_runs=forced_runs.of_schema(made) <= MAX_FORCED)


def of_regex(field: str, regex: str) -> Source:
    """Make a grammar of a regular expression, in the syntax of Rust's regex crate, that the whole text matches."""
    _check_length(len(regex))
    short = forced_runs.of_regex(regex) <= MAX_FORCED
    return Source(field, LLMatcher.grammar_from_regex(regex), short_runs=short)


def of_choice(field: str, choices: Sequence[str]) -> Source:
    """Make a grammar of some texts, of which the answer is one."""
    _check_length(sum(map(len, choices)))
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    short = max(map(len, choices), default=0) <= MAX_FORCED
    return Source(field, LLMatcher.grammar_from_lark(f"start: {alternatives}"), short_runs=short)


def of_grammar(
    field: str, grammar: str, *, short_runs: bool = False, parts: Mapping[str, Mapping[str, Any]] | None = None
) -> Source:
    """Make a grammar of one in llguidance's dialect of Lark, or in GBNF. `short_runs`, `parts`: as of `Source`."""
    _check_length(len(grammar))
    return Source(field, grammar, written=True, short_runs=short_runs, parts=parts or {})


def _check_length(length: int) -> None:
    """Refuse what a grammar is made of where that alone is longer than a grammar may be: it would take long.

    Raises:
        GrammarError: it is.
    """
    if length > MAX_BYTES:
        raise GrammarError(f"the grammar has more than {MAX_BYTES} characters")


def of_tags(field: str, tags: Sequence[Tag], triggers: Sequence[str], is_special: Callable[[str], bool]) -> Source:
    """Free text in which a trigger begins one of the tags that start with it.

    Args:
        is_special: whether a text is the name of a special token.

    Raises:
        GrammarError: a tag starts with no trigger; triggers are special tokens and text; it is too long.
    """
    special = {is_special(trigger) for trigger in triggers}
    if len(special) > 1:
        raise GrammarError("triggers must be all special tokens or all text")
    made, length, run = [], 0, 0
    for tag in tags:
        trigger = next((each for each in triggers if each and tag.begin.startswith(each)), None)
        if trigger is None:
            raise GrammarError(f"the tag {tag.begin!r} begins with no trigger")
        _check_length(len(msgspec.json.encode(tag.schema)))
        schema = schemas.for_llguidance(tag.schema, {})
        length += len(tag.begin) + len(json.dumps(schema)) + len(tag.end)
        if length > MAX_BYTES:
            raise GrammarError(f"the grammar has more than {MAX_BYTES} characters")
        run = max(run, len(tag.begin) + forced_runs.of_schema(schema) + len(tag.end))
        made.append(StructTag(trigger=trigger, begin=tag.begin, grammar=schema, end=tag.end))
    text = LLMatcher.grammar_from_lark(StructTag.to_grammar(made, assume_special=True in special))
    return Source(field, text, short_runs=run <= MAX_FORCED)


def behind(header: str, grammar: str) -> str:
    """A serialized grammar with something before its text. `header`: an expression in Lark."""
    return _within(f"start: {header} @body", "body", grammar)


def check(source: Source) -> str:
    """Return a grammar that can be followed, serialized. It can take any time, and exhaust memory or the stack.

    Raises:
        GrammarError: it cannot; the message names the place.
    """
    try:
        _check_length(len(source.text))
    except GrammarError as error:
        raise GrammarError(f"{source.field}: {error}") from None
    try:
        text = grammar_from("grammar", source.text) if source.written else source.text
    except ValueError as error:
        raise GrammarError(f"{source.field}: {error}") from None
    message = _refusal(text)
    if message:
        place = "" if source.schema is None else _place(source.schema, message)
        raise GrammarError(_part_refused(source) or f"{source.field}{place}: {message}")
    if not source.short_runs:
        text = _without_runs(text)
    # Masks take work that validation does not; special tokens that bytes lack do not matter here.
    matcher = LLMatcher(LLTokenizer("byte", slices=[]), text, log_level=0, limits=LIMITS)
    for _ in range(_TRIED_BYTES):
        allowed = int.from_bytes(matcher.compute_bitmask()[:32], "little")
        if matcher.is_error():
            _check_circles(source)
            raise GrammarError(f"{source.field}: the grammar is too large: {reason(matcher)}")
        if not allowed:
            break
        matcher.consume_token(allowed.bit_length() - 1)
    return text


def _without_runs(text: str) -> str:
    """A serialized grammar of which llguidance does not look for runs: the model chooses the tokens of these, too."""
    return _within('%llguidance {"no_forcing": true}\nstart: @chosen', "chosen", text)


def _within(lark: str, name: str, grammar: str) -> str:
    """A grammar in Lark that refers to a serialized one by a name."""
    # llguidance takes Lark as it is.
    grammars = json.loads(grammar)["grammars"] if grammar.startswith("{") else [{"lark_grammar": grammar}]
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**grammars[0], "name": name}, *grammars[1:]]})


def _refusal(text: str) -> str:
    return LLMatcher.validate_grammar(text, limits=LIMITS).strip()


def _part_refused(source: Source) -> str:
    """The place and the message of the first of a grammar's parts that is refused by itself; empty: none is."""
    end = time.process_time() + _PROBING_SECONDS
    for part, schema in source.parts.items():
        if time.process_time() > end:
            break
        message = _refusal(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
        if message:
            return f"{source.field}.{part}{_place(schema, message)}: {message}"
    return ""


def _check_circles(source: Source) -> None:
    """Refuse schemas that refer to themselves without end by the names of the references: llguidance's message has
    none.

    Raises:
        GrammarError: one does.
    """
    whole = {} if source.schema is None else {source.field: source.schema}
    for place, schema in (whole | {f"{source.field}.{part}": each for part, each in source.parts.items()}).items():
        circle = schemas.circle(schema)
        if circle:
            raise GrammarError(f"{place}: $ref leads back to itself: {', '.join(circle)}")


def _place(schema: Mapping[str, Any], message: str) -> str:
    """Path of the innermost part of a schema that is refused for this reason by itself."""
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    place, end = "", time.process_time() + _PROBING_SECONDS
    while True:
        for path, part in schemas.parts(schema):
            if time.process_time() > end:
                return place
            text = LLMatcher.grammar_from_json_schema(json.dumps({**definitions, **part}))
            if _refusal(text) == message:
                place, schema = f"{place}.{path}", part
                break
        else:
            return place

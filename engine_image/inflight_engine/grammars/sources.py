"""Grammars as clients write them, and their validation without a model's vocabulary."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from llguidance import LLMatcher, LLTokenizer, StructTag, grammar_from

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # a type of the stubs alone

from inflight_engine.formats import schemas
from inflight_engine.formats.schemas import MAX_BYTES
from inflight_engine.grammars.compiled import LIMITS, GrammarError

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
    """

    field: str
    text: str
    schema: Mapping[str, Any] | None = None
    written: bool = False


class Tag(NamedTuple):
    """A part of free text that follows a schema, from `begin` to `end`."""

    begin: str
    schema: Mapping[str, Any]
    end: str


def of_schema(field: str, schema: Mapping[str, Any], options: JsonCompileOptions | None = None) -> Source:
    """Make a grammar of a JSON schema. Arguments as of `schemas.for_llguidance`."""
    made = schemas.for_llguidance(schema, options or {})
    return Source(field, LLMatcher.grammar_from_json_schema(json.dumps(made, separators=(",", ":"))), schema)


def of_regex(field: str, regex: str) -> Source:
    """Make a grammar of a regular expression, in the syntax of Rust's regex crate, that the whole text matches."""
    return Source(field, LLMatcher.grammar_from_regex(regex))


def of_choice(field: str, choices: Sequence[str]) -> Source:
    """Make a grammar of some texts, of which the answer is one."""
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return Source(field, LLMatcher.grammar_from_lark(f"start: {alternatives}"))


def of_grammar(field: str, grammar: str) -> Source:
    """Make a grammar of one in llguidance's dialect of Lark, or in GBNF."""
    return Source(field, grammar, written=True)


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
    made, length = [], 0
    for tag in tags:
        trigger = next((each for each in triggers if each and tag.begin.startswith(each)), None)
        if trigger is None:
            raise GrammarError(f"the tag {tag.begin!r} begins with no trigger")
        schema = schemas.for_llguidance(tag.schema, {})
        length += len(tag.begin) + len(json.dumps(schema)) + len(tag.end)
        if length > MAX_BYTES:
            raise GrammarError(f"the grammar has more than {MAX_BYTES} characters")
        made.append(StructTag(trigger=trigger, begin=tag.begin, grammar=schema, end=tag.end))
    return Source(field, LLMatcher.grammar_from_lark(StructTag.to_grammar(made, assume_special=True in special)))


def behind(header: str, grammar: str) -> str:
    """A serialized grammar with something before its text. `header`: an expression in Lark."""
    body, *rest = json.loads(grammar)["grammars"]
    return json.dumps({"grammars": [{"lark_grammar": f"start: {header} @body"}, {**body, "name": "body"}, *rest]})


def check(source: Source) -> str:
    """Return a grammar that can be followed, serialized. It can take any time, and exhaust memory or the stack.

    Raises:
        GrammarError: it cannot; the message names the place.
    """
    if len(source.text) > MAX_BYTES:
        raise GrammarError(f"{source.field}: the grammar has more than {MAX_BYTES} characters")
    try:
        text = grammar_from("grammar", source.text) if source.written else source.text
    except ValueError as error:
        raise GrammarError(f"{source.field}: {error}") from None
    message = _refusal(text)
    if message:
        place = "" if source.schema is None else _place(source.schema, message)
        raise GrammarError(f"{source.field}{place}: {message}")
    # Masks take work that validation does not; special tokens that bytes lack do not matter here.
    matcher = LLMatcher(LLTokenizer("byte", slices=[]), text, log_level=0, limits=LIMITS)
    for _ in range(_TRIED_BYTES):
        allowed = int.from_bytes(matcher.compute_bitmask()[:32], "little")
        if matcher.is_error():
            raise GrammarError(f"{source.field}: the grammar is too large: {matcher.get_error()}")
        if not allowed:
            break
        matcher.consume_token(allowed.bit_length() - 1)
    return text


def _refusal(text: str) -> str:
    return LLMatcher.validate_grammar(text, limits=LIMITS).strip()


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

"""Grammars of tool calls, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from inflight_engine.formats import forced_runs
from inflight_engine.formats.format import (
    Format,
    GemmaArguments,
    Json,
    JsonCall,
    Maybe,
    Name,
    NumberedName,
    Part,
    PythonCall,
    Space,
    Tagged,
)
from inflight_engine.formats.schemas import MAX_BYTES, for_llguidance
from inflight_engine.formats.values import GEMMA_QUOTE, enum_of, json_types, parameters_of

TokenOf = Callable[[str], int | None]
"""Id of the special token with this name; None: there is none."""

_TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as Python's json writes it, and as models were trained on."""

_AROUND = 256
"""Characters of a format around a call, and more."""

_MAX_REPEATED = 16
"""How often schemas may be made that are in the grammar once, such as the definitions of all parameters."""

_SPECIAL = re.compile(r"(<[^<>\s]+>|\[[A-Z_/]+\]|｜DSML｜)")

_NOTATIONS = r"""
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/
INTEGER: /-?(0|[1-9][0-9]*)/
STRING: /"([^"\\\x00-\x1f]|\\["\\nrt])*"/
"""


class GrammarText:
    """Rules of a grammar under construction.

    Args:
        token_of: special tokens are no text of a grammar, but ids.

    Attributes:
        types: of definitions, see `json_types`.
    """

    def __init__(self, token_of: TokenOf) -> None:
        self.rules: list[str] = []
        self.types: dict[int, set[str]] = {}
        self._token_of = token_of
        self._names: dict[str, str] = {}
        self.numbers = count()
        self._length = 0
        """Characters of the rules."""
        self._made = 0
        """Characters of JSON schemas, also of those whose rule was there."""

    def literal(self, text: str) -> str:
        """An expression for exactly this text."""
        pieces: list[str] = []
        plain = ""
        for piece in _SPECIAL.split(text):
            token_id = self._token_of(piece) if piece else None
            if token_id is None:
                plain += piece
                continue
            if plain:
                pieces.append(json.dumps(plain, ensure_ascii=False))
            pieces.append(f"<[{token_id}]>")
            plain = ""
        if plain:
            pieces.append(json.dumps(plain, ensure_ascii=False))
        return " ".join(pieces)

    def rule(self, body: str, attributes: str = "") -> str:
        """Return the name of a rule, which is added where there is none like it.

        Raises:
            ValueError: the grammar is too long with it.
        """
        rule = f"{attributes}: {body}"
        name = self._names.get(rule)
        if name is None:
            self._length += len(rule)
            _check_length(self._length)
            name = self._names[rule] = f"r{next(self.numbers)}"
            self.rules.append(name + rule)
        return name

    def json(self, schema: Mapping[str, Any], *, strict: bool) -> str:
        """A rule for JSON of this schema. `strict`: a schema with keywords that cannot be enforced is none; otherwise
        these are left out."""
        made = json.dumps(for_llguidance(schema, {**_TIGHT, "lenient": not strict}), ensure_ascii=False)
        self._made += len(made)
        _check_length(self._made // _MAX_REPEATED)
        return self.rule(f"%json {made}")

    def text_up_to(self, end: str, without: str = "") -> str:
        """A rule for any text that ends with the first `end`. `without`: what restricts the text further."""
        plain, special, rest = self.literal(end).partition("<[")
        if special:
            before = json.loads(plain) if plain else ""
            return self.rule(f"{self.rule(f'/(?s:.*){re.escape(before)}/{without}')} {special}{rest}")
        return self.rule(f"/(?s:.*)/{without}", f"[suffix={json.dumps(end, ensure_ascii=False)}]")


def _check_length(length: int) -> None:
    if length > MAX_BYTES:
        raise ValueError(f"the grammar has more than {MAX_BYTES} characters")


def answer_header(token_of: TokenOf) -> str:
    """An expression for the header of an answer in harmony's messages."""
    return GrammarText(token_of).literal("<|channel|>final<|message|>")


def longest_run(tool: Mapping[str, Any]) -> int:
    """Return at least the length of the longest text that the grammar of a call leaves no choice of, in characters."""
    parameters = tool.get("parameters") or {}
    if "x-guidance" in json.dumps(parameters):  # white space of its own, perhaps of one parameter
        return forced_runs.UNKNOWN
    return len(tool["name"]) + _AROUND + forced_runs.of_schema({**parameters, "x-guidance": {}})


def calls_grammar(form: Format, tools: Sequence[Mapping[str, Any]], token_of: TokenOf, *, several: bool) -> str:
    """The grammar of an answer that calls tools.

    Args:
        tools: the functions that may be called, in OpenAI's shape: `name`, `parameters` and `strict`.
        several: more than one call is allowed.

    Raises:
        ValueError: it is too long.
    """
    text = GrammarText(token_of)
    return _grammar(text, _calls(text, form, tools, several=several))


def text_or_calls_grammar(form: Format, tools: Sequence[Mapping[str, Any]], token_of: TokenOf, *, several: bool) -> str:
    """The grammar of an answer of any text that may call tools: what begins as a call is one. Arguments and
    errors as of `calls_grammar`."""
    text = GrammarText(token_of)
    if form.channels:
        calls = _calls(text, form, tools, several=several)
        header, end = text.literal("<|message|>"), "<|end|>"
        other = f'({text.literal("<|channel|>")} ("analysis" | "commentary") {header} {text.text_up_to(end)} '
        other += f"{text.literal('<|start|>assistant')})*"
        return _grammar(text, rf"{other} ({calls} | {answer_header(token_of)} /(?s:.*)/)")
    opener, *others = form.openers
    at_start = len(form.openers[-1]) == 1
    hidden = [each for each in (form.openers[:-1] if at_start else others) if token_of(each) is None]
    without = "".join(f" & ~/(?s:.*{re.escape(each)}.*)/" for each in hidden)
    if at_start:
        calls = _calls(text, form, tools, several=several)
        begin = re.escape(form.openers[-1])
        return _grammar(text, f"{calls} | PLAIN", rf"PLAIN: /(?s:\s*([^\s{begin}].*)?)/{without}")
    calls = _calls(text, form, tools, several=several, opened=True)
    before = text.text_up_to(opener, without)
    return _grammar(text, f"({before} {calls}){'*' if several else '?'} REST", f"REST: /(?s:.*)/{without}")


def _grammar(text: GrammarText, start: str, *terminals: str) -> str:
    rules = "\n".join((*text.rules, *terminals))
    return f"%llguidance {{}}\nstart: {start}\n{rules}\n{_NOTATIONS}"


def _calls(
    text: GrammarText, form: Format, tools: Sequence[Mapping[str, Any]], *, several: bool, opened: bool = False
) -> str:
    """Calls with what is around them. `opened`: the first part is there already."""
    begin = () if form.section is None else form.section.open
    first = form.call[1:] if opened and not begin else form.call
    calls = [_call(text, first, tool) for tool in tools]
    separator = form.between if form.section is None or not form.section.separator else form.section.separator
    # One text with what follows it: the end of the section may begin alike.
    later = [_call(text, (separator, *form.call), tool) for tool in tools]
    again = f"({' | '.join(later)})*" if several else ""
    end = "" if form.section is None else _sequence(text, form.section.close)
    return f"{_sequence(text, begin[1:] if opened else begin)} {text.rule(' | '.join(calls))} {again} {end}"


def _call(text: GrammarText, parts: Sequence[Part], tool: Mapping[str, Any]) -> str:
    name, strict = tool["name"], bool(tool.get("strict"))
    # As at OpenAI a function without parameters takes none.
    schema = {**(tool.get("parameters") or {"additionalProperties": False}), "type": "object"}
    written: list[str] = []
    plain = ""
    for part in parts:
        match part:
            case str():
                plain += part
                continue
            case Space():
                plain += part.written
                continue
            case Maybe():
                plain += part.text
                continue
            case Name():
                plain += name + part.ends[0]
                continue
            case NumberedName():
                begin, follows = f"{part.prefix}{name}:", f"/[0-9]+/ {text.literal(part.end)}"
            case Json():
                begin, follows = "", text.json(schema, strict=strict)
            case JsonCall():
                begin = f'{{"{part.name}": {json.dumps(name)}, "{part.arguments[0]}": '
                follows = f"{text.json(schema, strict=strict)} {text.literal('}')}"
            case Tagged():
                begin, follows = "", _tagged(text, part, schema, strict=strict)
            case GemmaArguments():
                begin, follows = "", f"{_arguments(text, schema, ':', ',', _gemma)} {text.literal('}')}"
            case PythonCall():
                begin, follows = f"{name}(", f"{_arguments(text, schema, '=', ', ', _python)} {text.literal(')')}"
        written += [text.literal(plain + begin), follows]
        plain = ""
    return text.rule(" ".join(filter(None, [*written, text.literal(plain)])))


def _sequence(text: GrammarText, parts: Sequence[Part]) -> str:
    written = ""
    for part in parts:
        match part:
            case str():
                written += part
            case Space():
                written += part.written
            case Maybe():
                written += part.text
            case _:
                raise AssertionError(f"{part} is not text")
    return text.literal(written)


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Parameters of a function: name, schema, and whether it is required."""
    stated = schema.get("required")
    required = {each for each in stated if isinstance(each, str)} if isinstance(stated, list) else ()
    return [(name, each, name in required) for name, each in parameters_of(schema).items()]


def _tagged(text: GrammarText, part: Tagged, schema: Mapping[str, Any], *, strict: bool) -> str:
    written = []
    for name, each, required in _properties(schema):
        strings = json_types(each, text.types) in (set(), {"string"})
        value_open = part.value_open.replace("{string}", "true" if strings else "false")
        opening = text.literal(f"{part.key_open}{name}{part.key_close}{value_open}{part.before_value}")
        end = part.after_value + part.value_close
        stated = enum_of(each)
        if strings and stated is not None:
            choices = " | ".join(text.literal(value) for value in stated if isinstance(value, str) and value)
            value = f"({choices}) {text.literal(end)}"
        elif strings:
            value = text.text_up_to(end)
        else:
            value = f"{text.json(each, strict=strict)} {text.literal(end)}"
        argument = text.rule(f"{opening} {value} {text.literal(part.after)}")
        written.append(argument if required else f"{argument}?")
    return " ".join(written)


def _arguments(
    text: GrammarText,
    schema: Mapping[str, Any],
    equals: str,
    comma: str,
    value: Callable[[GrammarText, Mapping[str, Any]], str],
) -> str:
    """Arguments with separators between them, required ones first."""
    properties = sorted(_properties(schema), key=lambda each: not each[2])
    arguments = [
        (text.rule(f"{text.literal(name + equals)} {value(text, each)}"), must) for name, each, must in properties
    ]
    separator = text.literal(comma)
    # From the last on: the list from each argument on, after an earlier one and as the first.
    first = later = ""
    for argument, must in reversed(arguments):
        alone = f"{argument} {later}".strip()
        if must:
            first, later = alone, f"{separator} {alone}"
        else:
            first = text.rule(f"{alone} | {first}") if first else f"({alone})?"
            later = text.rule(f"({separator} {argument})? {later}")
    return first


def _value(
    text: GrammarText,
    schema: Mapping[str, Any],
    words: Mapping[str, str],
    string: str,
    key: str,
    quote: Callable[[str], str],
) -> str:
    """A value in a notation of its own. Lists and objects are free inside.

    Args:
        words: true, false and null.
        string, key: rules for a string and for a key with its colon.
        quote: writes a string.
    """
    types = json_types(schema, text.types)
    if types == {"integer"}:
        return "INTEGER"
    if types and types <= {"number", "integer"}:
        return "NUMBER"
    if types == {"boolean"}:
        return f'("{words["true"]}" | "{words["false"]}")'
    if types == {"string"}:
        choices = [each for each in enum_of(schema) or () if isinstance(each, str)]
        return f"({' | '.join(text.literal(quote(each)) for each in choices)})" if choices else string
    any_value = f"any{next(text.numbers)}"
    scalars = " | ".join(f'"{word}"' for word in words.values())
    items = f'"[" ({any_value} (", " {any_value})*)? "]"'
    members = f'"{{" ({key} {any_value} (", " {key} {any_value})*)? "}}"'
    text.rules.append(f"{any_value}: {string} | NUMBER | {scalars} | {items} | {members}")
    return any_value


def _python(text: GrammarText, schema: Mapping[str, Any]) -> str:
    return _value(text, schema, {"true": "True", "false": "False", "null": "None"}, "STRING", 'STRING ": "', json.dumps)


def _gemma(text: GrammarText, schema: Mapping[str, Any]) -> str:
    string = text.rule(f"{text.literal(GEMMA_QUOTE)} {text.text_up_to(GEMMA_QUOTE)}")
    return _value(text, schema, {each: each for each in ("true", "false", "null")}, string, r'/\w+/ ":"', _gemma_quoted)


def _gemma_quoted(text: str) -> str:
    return GEMMA_QUOTE + text + GEMMA_QUOTE

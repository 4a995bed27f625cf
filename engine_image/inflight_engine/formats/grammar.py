"""Grammars of tool calls, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from inflight_engine.formats import forced_runs
from inflight_engine.formats.arguments import GEMMA, PYTHON, tagged_arguments, written_arguments
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
from inflight_engine.formats.rules import GrammarText, TokenOf

_AROUND = 256
"""Characters of a format around a call, and more."""

_NOTATIONS = r"""
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/
STRING: /"([^"\\\x00-\x1f]|\\["\\nrt])*"/
"""


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
        UnenforceableError: calls cannot be bound to the schema of a function in this format.
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
                begin, follows = "", tagged_arguments(text, part, schema, name, strict=strict)
            case GemmaArguments():
                begin, follows = (
                    "",
                    f"{written_arguments(text, GEMMA, schema, name, strict=strict)} {text.literal('}')}",
                )
            case PythonCall():
                begin, follows = (
                    f"{name}(",
                    f"{written_arguments(text, PYTHON, schema, name, strict=strict)} {text.literal(')')}",
                )
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
